"""One simulated run, from its settings to its result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.evaluate import evaluate
from fetchsgd.clients.gathering import DropoutSeed, Gatherer
from fetchsgd.clients.probe import batching_note, check_task
from fetchsgd.diagnose import Diagnosed, diagnosed
from fetchsgd.errors import DivergedError, UserError
from fetchsgd.methods import Method
from fetchsgd.privacy import Source
from fetchsgd.ranks import ALONE, Ranks
from fetchsgd.runs.checkpoint import Checkpoint, need_safetensors, restored
from fetchsgd.runs.folder import Line, NoFolder, RunFolder
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.merging import make_liars, make_merger
from fetchsgd.runs.phases import Phases
from fetchsgd.runs.private_modes import private
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
from fetchsgd.runs.sums import SumsRecord
from fetchsgd.server.rounds import Clients, Merged, Training, train_rounds
from fetchsgd.simulation.cohort import CohortAtWork
from fetchsgd.simulation.heap import keep_freed_memory
from fetchsgd.simulation.spread import Spread
from fetchsgd.simulation.together import check_together, from_first
from fetchsgd.sums import Modular

MOST_TIMED = 8  # clients, to say what it costs that a model cannot be run for many at once
LOOK_EVERY = {"cpu": 1, "cuda": 25}  # rounds: looking at the loss waits for the device
SAME_EVERY = 50  # rounds, after which processes compare their weights


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its result, a line per evaluation, and where it came to.

    training: None if the run diverged, or had ended before.
    weights: those of the trained model, where there is a training.
    """

    summary: Line
    lines: list[Line]
    training: Training | None
    weights: Float32[Tensor, " dim"] | None = None


class Run:
    """A run that is set up: model, method and data are on the device, nothing has been trained.

    clients: only this many of the task's, from the first on; 0 takes all.
    ranks: processes that share a round's clients; each sets up the same run.
    """

    def __init__(self, config: Config, clients: int = 0, ranks: Ranks = ALONE) -> None:
        self.setup = setup = Setup(config, clients, ranks)
        self.ranks = ranks
        check_together(ranks, setup)
        self.config, self.device = config, setup.device
        task, train = config.task, config.train
        if self.device.type == "cpu":
            keep_freed_memory()
        self.diagnosis: Diagnosed | None = diagnosed(setup.method, config)
        self.method: Method = self.diagnosis or setup.method
        self.private = private(config, setup.sampler, setup.rounds, setup.levels)
        if self.private is not None and not self.method.message.linear:
            raise UserError(
                f"privacy needs messages that add up, and those of {config.method} do not: each "
                "client chooses what it sends; take fetchsgd, true_topk, fedavg or uncompressed"
            )
        self.merger = make_merger(setup, sums_groups=True)
        self.liars = make_liars(config, setup.sampler.num_clients)
        gatherer = Gatherer(
            task.train.to(self.device), train.averaging, train.seed, task.augment,
            few_shapes=setup.trainer.graphs, draws=DropoutSeed(train.seed),
        )  # fmt: skip
        self.cohort = CohortAtWork(
            gatherer, setup.trainer, self.method, config.local, setup.upload, train.seed,
            self.private.ready if self.private else None, Spread(ranks), self.merger, self.liars,
        )  # fmt: skip
        self.test = setup.test_data()
        check_task(setup.trainer, setup.origin, task, self.cohort.gatherer.data, self.test)

    @cached_property
    def notes(self) -> list[str]:
        """What the user should read before the run: sentences about the method and the model."""
        cohort, upload = self.cohort, self.setup.upload(0)
        clients = self.setup.sampler.cohort(0)[:MOST_TIMED]
        found = list(self.method.notes)
        found += [] if self.private is None else self.private.notes
        if len(clients) and cohort.needs_each_client(upload):
            examples = cohort.gatherer.gather(clients, 0)
            note = batching_note(self.setup.trainer, self.setup.origin, examples)
            found += [] if note is None else [note]
        return found

    @property
    def rounds(self) -> int:
        """Up to the end, or as far as a budget of privacy goes."""
        return self.setup.rounds if self.private is None else self.private.rounds

    def start(self) -> Training:
        """Before the first round."""
        start = self.setup.start()
        memory = self.cohort.spread.own_memory(self.setup.memory())
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
        self, training: Training, rounds: int | None = None, phases: Phases | None = None
    ) -> Iterator[tuple[Training, Merged]]:
        """Algorithm 1 from there, to the end or up to this many rounds."""
        if phases is None:
            return self._rounds(training, rounds, self.clients)
        clients = phases.timed("clients", self.clients)
        return phases.rounds(self._rounds(training, rounds, clients))

    def _rounds(
        self, training: Training, rounds: int | None, clients: Clients
    ) -> Iterator[tuple[Training, Merged]]:
        setup = self.setup
        until = self.rounds if rounds is None else rounds
        return train_rounds(
            training,
            until,
            clients,
            setup.rate,
            self.method,
            setup.grid,
            setup.server_rate,
            setup.decay,
        )

    def evaluate(self, weights: Float32[Tensor, " dim"]) -> Evaluation:
        """The metric and the mean loss on the test set."""
        trainer, task = self.setup.trainer, self.config.task
        return Evaluation(*evaluate(trainer, task, *self.test, weights, self.ranks))

    def execute(
        self, out: Path, resume: bool = False, watch: Watch | None = None
    ) -> dict[str, Any]:
        """Train to the end and return the result. Raises DivergedError after recording it."""
        return self.complete(out, resume, watch).summary

    def complete(
        self, out: Path | None = None, resume: bool = False, watch: Watch | None = None
    ) -> Ended:
        """The same with all that was measured, and in memory if there is no folder.

        Of several processes the first alone writes to the folder, and shows where the run stands.
        """
        if out is None:
            return self._train(NoFolder(), None, watch if self.ranks.is_first else None)
        need_safetensors()
        if not self.ranks.is_first:
            done, found = self._opened(None, out, resume)
            return done or self._train(NoFolder(), found, None)
        with alone_in(out):
            folder = open_folder(out, self.config, resume)
            done, found = self._opened(folder, out, resume)
            if done is not None:
                return done
            folder.start(0 if found is None else found.training.round)
            return self._train(folder, found, watch)

    def _opened(
        self, folder: RunFolder | None, out: Path, resume: bool
    ) -> tuple[Ended | None, Checkpoint | None]:
        """What a folder holds of the run: its end, or where to go on. All processes are told."""
        if not resume:
            return None, None
        ended = None if folder is None else folder.result
        if ended is not None and self._goes_beyond(ended):
            ended = None
        lines = folder.lines if folder is not None and ended is not None else []
        ended, lines = json.loads(self.ranks.first_says(json.dumps([ended, lines])))
        if ended is not None:
            return Ended(unless_diverged(ended, out), lines, None), None
        saved = from_first(self.ranks, out, self.device)
        if saved is None:
            return None, None
        found = restored(saved, out, self.start(), self.setup.grid.downloads(), self.device)
        memory = self.cohort.spread.own_memory(found.training.memory)
        return None, replace(found, training=replace(found.training, memory=memory))

    def _goes_beyond(self, done: Line) -> bool:
        """Whether there is more to train than a run that has finished."""
        return done.get("status") == "finished" and done["rounds"] < self.rounds

    def _train(
        self, folder: RunFolder | NoFolder, found: Checkpoint | None, watch: Watch | None
    ) -> Ended:
        training = self.start() if found is None else found.training
        beside: dict[str, Beside] = {"diagnosis": self.diagnosis} if self.diagnosis else {}
        if self.private is not None:
            self.private.keep_key(folder.path)
            self.private.source = Source(
                bytes.fromhex(self.ranks.first_says(self.private.source.key.hex()))
            )
            beside["privacy"] = self.private
        beside |= {} if self.merger is None else {"merge": self.merger}
        beside |= {} if self.liars is None else {"attack": self.liars}
        sums = SumsRecord(self.device)
        if isinstance(self.setup.quantiser, Modular):
            beside["sums"] = sums
        pace = Pace(LOOK_EVERY[self.device.type], self.config.train.checkpoint_every)
        recorder = Recorder(
            self.setup, folder, self.evaluate, pace, watch, beside, self.rounds, self._whole
        )
        if found is not None:
            recorder.resume(found)
        self.ranks.check_same(training.weights, training.round)
        try:
            for now, merged in self.train(training, phases=recorder.phases):
                if now.round % SAME_EVERY == 0 or now.round in recorder.eval_rounds:
                    self.ranks.check_same(now.weights, now.round)
                sums.after(merged)
                recorder.after(now, merged)
                training = now
            stopped = None
            if self.private is not None and self.rounds < self.setup.rounds:
                stopped = self.private.end
            summary = recorder.finish(training, stopped)
            if self.private is not None:
                self.private.forget_key(folder.path)
            self.ranks.wait_for_all()
            return Ended(summary, folder.lines, training, recorder.trained(training))
        except DivergedError as error:
            assert recorder.result is not None
            error.result = Ended(recorder.result, folder.lines, None)
            recorder.close()
            self.ranks.wait_for_all()  # who ends sooner might have the first killed as it writes
            raise
        finally:
            recorder.close()

    def _whole(self, training: Training) -> Training:
        return replace(training, memory=self.cohort.spread.whole_memory(training.memory))
