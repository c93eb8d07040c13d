"""What is kept of a run while it trains: evaluations, metrics, checkpoints, the result.

A simulation and a federation hand every round to `Recorder.after` and leave the rest to it. It also
notices when a run diverges, says since when, and ends it with DivergedError.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs.average import Average
from fetchsgd.runs.checkpoint import EARLIER, Checkpoint, CheckpointWriter, Tensors
from fetchsgd.runs.environment import commit, hardware, versions
from fetchsgd.runs.files import CONFIG
from fetchsgd.runs.folder import Line, NoFolder, RunFolder
from fetchsgd.runs.longer import is_longer, same_length
from fetchsgd.runs.older import rewritten
from fetchsgd.runs.phases import Phases
from fetchsgd.runs.settings import Config, changes
from fetchsgd.runs.settings.reference import entries_of
from fetchsgd.runs.setup import Setup
from fetchsgd.runs.toml_files import read_toml
from fetchsgd.runs.traffic import traffic
from fetchsgd.runs.trained_model import write_model
from fetchsgd.runs.trend import Trend
from fetchsgd.server.rounds import Merged, Training

OWN = "recorder"  # in checkpoints


@dataclass(frozen=True)
class Progress:
    """What a display shows."""

    round: int
    rounds: int
    loss: float  # nan where only clients know it
    metric: float | None
    up: int
    down: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each


Watch = Callable[[Progress], None]


class Evaluation(NamedTuple):
    """The metric and the mean loss on the test set."""

    metric: float
    loss: float


Evaluate = Callable[[Float32[Tensor, " dim"]], Evaluation]


@dataclass(frozen=True)
class Pace:
    """How often, in rounds.

    look_every: look at the loss, which waits for the device. save_every: save a checkpoint; 0 only
        at the end. every_round: also log rounds without an evaluation, and go on only when a
        round's checkpoint is on the disk, with one of an earlier round beside it.
    """

    look_every: int = 1
    save_every: int = 0
    every_round: bool = False


class Beside(Protocol):
    """Something that looks on while a run trains, and is saved with it."""

    def line(self) -> Line:
        """What it adds to a line of the metrics; asked once for each."""
        ...

    def result(self) -> Line:
        """What it adds to the result."""
        ...

    def tensors(self) -> Tensors:
        """What a checkpoint must hold of it."""
        ...

    def restore(self, tensors: Tensors) -> None: ...


def open_folder(path: Path, config: Config, resume: bool) -> RunFolder:
    """The folder of a run, with what its task measures. A run is resumed with its own settings."""
    task, settings = config.task, config.settings
    if resume and (path / CONFIG).exists():
        written = read_toml(path / CONFIG)
        longer = is_longer(written, settings)
        changed = changes(written, same_length(settings, written) if longer else settings)
        if changed:
            raise UserError(f"cannot resume {path}: {changed[0]}")
        settings = rewritten(settings, written)
    comments = {name: str(entry) for name, entry in entries_of(settings).items()}
    return RunFolder(
        path, settings, resume, task.metric, task.higher_is_better, task.name, comments
    )


def unless_diverged(result: Line, folder: Path) -> Line:
    """The result of a run that has ended; DivergedError if it had diverged."""
    if result.get("status") == "diverged":
        raise DivergedError(
            f"{folder} holds a run that diverged at round {result.get('rounds')}; "
            "train with other settings in another folder"
        )
    return result


class Recorder:
    """For one run in one folder.

    end: the last round, if it is not that of the settings. whole: makes a training whole of which
    each process has a part, to save it.
    """

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder | NoFolder,
        evaluate: Evaluate,
        pace: Pace,
        watch: Watch | None = None,
        beside: dict[str, Beside] | None = None,
        end: int | None = None,
        whole: Callable[[Training], Training] | None = None,
    ) -> None:
        self.whole = whole or (lambda training: training)
        self.setup, self.folder, self.evaluate = setup, folder, evaluate
        self.pace, self.watch, self.beside = pace, watch, dict(beside or {})
        self.average: Average | None = None
        if decay := setup.config.train.average:
            self.average = self.beside["average"] = Average(decay)
        self.checkpoints = None if folder.path is None else CheckpointWriter(folder.path)
        self.seconds_before, self.began = 0.0, time.perf_counter()
        every = setup.config.train.eval_every * setup.sampler.rounds_per_epoch
        self.eval_rounds = {round(every * i) for i in range(1, int(setup.rounds / every) + 2)}
        self.end = setup.rounds if end is None else end  # the last round
        self.eval_rounds.add(self.end)
        self.result: Line | None = None
        self.losses: list[Tensor] = []  # since the last evaluation
        self.trend = Trend()
        self.phases = Phases(folder.last_line)
        # A run that was killed after its last round has nothing left to evaluate.
        self.last: Line = folder.last_line or {}
        self.metric: float | None = self.last.get(setup.config.task.metric)

    def resume(self, found: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.seconds_before = found.seconds
        own = found.beside.get(OWN, {})
        if "losses" in own:
            self.losses = list(own["losses"].unbind())
            self.trend = Trend.restored(own["trend"])
        for name, part in self.beside.items():
            if name in found.beside:
                part.restore(found.beside[name])

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def trained(self, training: Training) -> Float32[Tensor, " dim"]:
        """The weights that are evaluated and kept."""
        return training.weights if self.average is None else self.average.weights

    def after(self, training: Training, merged: Merged) -> None:
        """A round is over."""
        if self.average is not None:
            self.average.after(training.weights)
        someone, is_known = len(merged.clients) > 0, merged.loss_is_known
        if someone and is_known:
            self.losses.append(merged.loss)
        evaluates = training.round in self.eval_rounds
        if someone and (evaluates or training.round % self.pace.look_every == 0):
            typical = merged.typical_loss
            loss = float(merged.loss) if typical is None else typical
            self._look(training, loss if is_known else None)
        if self.pace.every_round and not bool(training.weights.isfinite().all()):
            self._diverged(training, "a weight is no longer finite")
        if evaluates:
            self._evaluate(training)
        elif self.pace.every_round:
            self._log_round(training, float(merged.loss) if is_known else None)
        self._save(training, evaluates)

    def finish(self, training: Training, stopped: str | None = None) -> dict[str, Any]:
        """All rounds are over. A folder with a result has the model, too.

        stopped: why, where it is before the last round.
        """
        if self.checkpoints is not None:
            self.checkpoints.wait()  # a run with a result is one whose last state is saved
        if self.folder.path is not None:
            write_model(self.folder.path, self.setup.model, self.trained(training))
        return self._end(training, "finished", {} if stopped is None else {"stopped": stopped})

    def close(self) -> None:
        try:
            if self.checkpoints is not None:
                self.checkpoints.close()
        finally:
            self.folder.close()

    def _save(self, training: Training, evaluates: bool) -> None:
        every, now = self.pace.save_every, training.round
        if now != self.end and not (every and now % every == 0):
            return
        training = self.whole(training)
        if self.checkpoints is None:
            return
        parts = {name: part.tensors() for name, part in self.beside.items()}
        losses = torch.stack(self.losses) if self.losses else torch.zeros(0)
        parts[OWN] = {"losses": losses, "trend": self.trend.tensor()}
        keep = self.pace.every_round and evaluates and self.trend.rising_since is None
        self.checkpoints.save(training, self.seconds, parts, keep=keep)
        if self.pace.every_round:
            self.checkpoints.wait()

    def _look(self, training: Training, loss: float | None) -> None:
        if loss is not None:
            self.trend = self.trend.after(training.round, loss)
            if not self.trend.allows(loss):
                self._diverged(training, f"the loss became {loss:g}")
        if self.watch is not None:
            up, down = training.ledger.wire_bytes
            shown, rounds = math.nan if loss is None else loss, self.setup.rounds
            phases = dict(self.phases.seconds)
            self.watch(
                Progress(training.round, rounds, shown, self.metric, up, down, self.seconds, phases)
            )

    def _evaluate(self, training: Training) -> None:
        task = self.setup.config.task
        self.metric, test_loss = self.evaluate(self.trained(training))
        self.last = {
            **self._where(training),
            "lr": self.setup.rate(training.round - 1),
            "train_loss": float(torch.stack(self.losses).mean()) if self.losses else None,
            "test_loss": test_loss,
            task.metric: self.metric,
            **self._sent(training),
            **{key: value for part in self.beside.values() for key, value in part.line().items()},
        }
        self.losses.clear()
        self.folder.log(self.last)
        # A round's own loss is from before its update: the last update shows only here.
        self.trend = self.trend.after(training.round, test_loss)
        if not self.trend.allows(test_loss):
            self._diverged(training, f"the test loss became {test_loss:g}")

    def _log_round(self, training: Training, loss: float | None) -> None:
        extra = {key: value for part in self.beside.values() for key, value in part.line().items()}
        self.folder.log(
            {**self._where(training), "train_loss": loss, **self._sent(training), **extra}
        )

    def _where(self, training: Training) -> Line:
        per_epoch = self.setup.sampler.rounds_per_epoch
        return {"round": training.round, "epoch": training.round / per_epoch}

    def _sent(self, training: Training) -> Line:
        up, down = training.ledger.bytes
        wire_up, wire_down = training.ledger.wire_bytes
        return {
            "upload_bytes": up,
            "download_bytes": down,
            "wire_upload_bytes": wire_up,
            "wire_download_bytes": wire_down,
            "seconds": self.seconds,
            **self.phases.line(),
        }

    def _diverged(self, training: Training, what: str) -> None:
        self._end(training, "diverged")
        since = self.trend.rising_since
        began = f", rising since round {since}" if since and since < training.round else ""
        earlier = None if self.folder.path is None else self.folder.path / EARLIER
        kept = f"; {earlier} is of a round before" if earlier and earlier.exists() else ""
        raise DivergedError(
            f"{what} at round {training.round} of {self.setup.rounds}{began}; "
            f"try a lower schedule.peak, a wider sketch or a smaller k{kept}"
        )

    def _end(self, training: Training, status: str, more: Line | None = None) -> dict[str, Any]:
        setup, task = self.setup, self.setup.config.task
        finished = status == "finished"
        result = {
            "name": self.folder.name,
            "status": status,
            "task": task.name,
            "method": setup.config.method,
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
            "value": self.metric if finished else None,
            "train_loss": self.last.get("train_loss") if finished else None,
            "test_loss": self.last.get("test_loss") if finished else None,
            "rounds": training.round,
            "epochs": training.round / setup.sampler.rounds_per_epoch,
            "dim": setup.model.dim,
            **traffic(setup, training.ledger),
            "seconds": self.seconds,
            "seed": setup.config.train.seed,
            "commit": commit(),
            "hardware": hardware(setup.device),
            "versions": versions(),
            "config": setup.config.settings,
        }
        if self.trend.rising_since is not None and not finished:
            result["rising_since"] = self.trend.rising_since
        if setup.ranks.size > 1:
            result["processes"] = setup.ranks.size
        result |= more or {}
        for part in self.beside.values():
            result |= part.result()
        self.result = result
        self.folder.finish(result)
        return result
