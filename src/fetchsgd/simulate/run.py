"""One simulated run, from its settings to its result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.evaluate import evaluate
from fetchsgd.clients.gathering import Gatherer
from fetchsgd.diagnose import Diagnosed, diagnosed
from fetchsgd.errors import UserError
from fetchsgd.methods import Method
from fetchsgd.runs.checkpoint import load_checkpoint
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.private import private
from fetchsgd.runs.recorder import (
    Beside,
    Evaluation,
    Pace,
    Recorder,
    Watch,
    open_folder,
    unless_diverged,
)
from fetchsgd.runs.settings import Config
from fetchsgd.runs.setup import Setup
from fetchsgd.server.rounds import Merged, Training, train_rounds
from fetchsgd.simulate.cohort import CohortAtWork

LOOK_EVERY = {"cpu": 1, "cuda": 25}  # rounds: looking at the loss waits for the device


class Run:
    """A run that is set up: model, method and data are on the device, nothing has been trained.

    clients: only this many of the task's, from the first on; 0 takes all.
    """

    def __init__(self, config: Config, clients: int = 0) -> None:
        self.setup = setup = Setup(config, clients)
        self.config, self.device = config, setup.device
        task, train = config.task, config.train
        self.diagnosis: Diagnosed | None = diagnosed(setup.method, config)
        self.method: Method = self.diagnosis or setup.method
        self.private = private(config, setup.sampler, setup.rounds)
        if self.private is not None and not self.method.message.linear:
            raise UserError(
                f"privacy needs messages that add up, and those of {config.method} do not: each "
                "client chooses what it sends; take fetchsgd, true_topk, fedavg or uncompressed"
            )
        gatherer = Gatherer(
            task.train.to(self.device), train.averaging, train.seed, task.augment,
            few_shapes=setup.trainer.graphs,
        )  # fmt: skip
        self.cohort = CohortAtWork(
            gatherer, setup.trainer, self.method, config.local, setup.upload, train.seed,
            self.private.limit if self.private else None,
        )  # fmt: skip
        self.test = setup.test_data()

    @property
    def rounds(self) -> int:
        """Up to the end, or as far as a budget of privacy goes."""
        return self.setup.rounds if self.private is None else self.private.rounds

    def start(self) -> Training:
        """Before the first round."""
        start = self.setup.start()
        memory = self.setup.memory()
        return Training(start.round, start.place, start.state, start.ledger, memory)

    def clients(self, training: Training, rate: float) -> Merged:
        """Lines 4 to 10: the cohort of a round, what it fetches, and what it sends."""
        t = training.round
        cohort = self.setup.sampler.cohort(t)  # line 4
        training.ledger.download(cohort, t, training.place)  # line 6
        merged = self._merged(training, cohort, rate)
        return merged if self.private is None else self.private.noisy(merged, t)

    def _merged(self, training: Training, cohort: NDArray[np.int64], rate: float) -> Merged:
        if len(cohort):
            t = training.round
            return self.cohort(training.weights, cohort, rate, t, training.memory, training.size)
        # Coins may let nobody take part.
        nothing = training.weights.new_zeros(self.method.message.shape)
        unknown = training.weights.new_full((), math.nan)
        return Merged(nothing, cohort, 0, 0.0, unknown, within=torch.tensor(0))

    def train(
        self, training: Training, rounds: int | None = None
    ) -> Iterator[tuple[Training, Merged]]:
        """Algorithm 1 from there, to the end or up to this many rounds."""
        setup = self.setup
        until = self.rounds if rounds is None else rounds
        return train_rounds(
            training,
            until,
            self.clients,
            setup.rate,
            self.method,
            setup.grid,
            setup.server_rate,
            setup.decay,
        )

    def evaluate(self, weights: Float32[Tensor, " dim"]) -> Evaluation:
        """The metric and the mean loss on the test set."""
        return Evaluation(*evaluate(self.setup.trainer, self.config.task, *self.test, weights))

    def execute(
        self, out: Path, resume: bool = False, watch: Watch | None = None
    ) -> dict[str, Any]:
        """Train to the end and return the result. Raises DivergedError after recording it."""
        with alone_in(out):
            return self._execute(out, resume, watch)

    def _execute(self, out: Path, resume: bool, watch: Watch | None) -> dict[str, Any]:
        folder = open_folder(out, self.config, resume)
        if resume and (done := folder.result) is not None:
            return unless_diverged(done, out)
        setup, training = self.setup, self.start()
        found = None
        if resume:
            found = load_checkpoint(out, training, setup.grid.downloads(), self.device)
        training = training if found is None else found.training
        folder.start(training.round)
        beside: dict[str, Beside] = {"diagnosis": self.diagnosis} if self.diagnosis else {}
        if self.private is not None:
            self.private.keep_key(out)
            beside["privacy"] = self.private
        pace = Pace(LOOK_EVERY[self.device.type], self.config.train.checkpoint_every)
        recorder = Recorder(setup, folder, self.evaluate, pace, watch, beside, self.rounds)
        if found is not None:
            recorder.resume(found)
        try:
            for now, merged in self.train(training):
                recorder.after(now, merged)
                training = now
            if self.private is None:
                return recorder.finish(training)
            is_short = self.rounds < setup.rounds
            result = recorder.finish(training, self.private.end if is_short else None)
            self.private.forget_key(out)
            return result
        finally:
            recorder.close()
