"""One run from its settings to its result."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.batches import as_images
from fetchsgd.clients.trainer import Trainer
from fetchsgd.diagnose import diagnosed
from fetchsgd.errors import DivergedError, UserError
from fetchsgd.methods import LocalMethod, Memory, Method
from fetchsgd.quantisers.upload import Upload
from fetchsgd.randomness import number
from fetchsgd.runs.checkpoint import CheckpointWriter, load_checkpoint, load_diagnosis
from fetchsgd.runs.environment import choose_device, commit, compute_dtype, hardware, versions
from fetchsgd.runs.folder import Line, RunFolder
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.settings import Config
from fetchsgd.server.downloads import Downloads, FloatDownloads, StepDownloads
from fetchsgd.server.grids import StepGrid, make_grid
from fetchsgd.server.ledger import BYTES_PER_NUMBER, Ledger
from fetchsgd.server.rounds import Training, train_rounds
from fetchsgd.server.sampling import Sampler
from fetchsgd.simulate.cohort import CohortAtWork
from fetchsgd.tasks.base import cut, totals_and_counts
from fetchsgd.vector import FlatModel

MEMORY_LIMIT = 8 << 30
# A loss so far above where it started is not coming back.
HOPELESS = 1000.0


@dataclass(frozen=True)
class Progress:
    """What a display shows."""

    round: int
    rounds: int
    loss: float
    metric: float | None
    up: int
    down: int
    seconds: float


Watch = Callable[[Progress], None]


def make_method(config: Config, dim: int) -> Method:
    """The method for a model of so many weights, or a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are among the notes
        try:
            method: Method = config.method_class(dim=dim, **config.method_options)
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
    return method


class Run:
    """A run that is set up: model, method and data are on the device, nothing has been trained."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = choose_device(config.train.device)
        if self.device.type == "cuda":
            # Matrix products as torch does convolutions by default: in TF32.
            torch.set_float32_matmul_precision("high")
        task, train = config.task, config.train
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(train.seed, "weights"))
            module = task.model()
        self.model = FlatModel(module.to(self.device))
        self.origin = self.model.weights()  # w^0 (line 2)
        download = config.download
        self.grid = make_grid(download.grid, self.model, self.origin, download.step)
        self.method = make_method(config, self.model.dim)
        self.diagnosis = diagnosed(self.method, config)
        self.watched: Method = self.diagnosis or self.method
        dtype = compute_dtype(train.dtype, self.device)
        graphs = train.cuda_graphs and self.device.type == "cuda"
        rounded = train.dtype == "bfloat16_weights"
        self.trainer = Trainer(self.model, task.loss, train.weight_decay, dtype, graphs, rounded)
        data = task.train.to(self.device)
        self.clients = CohortAtWork(
            data, self.trainer, self.watched, config.local, Upload(config.upload.bits, train.seed),
            train.averaging, train.seed, task.augment,
        )  # fmt: skip
        self.test = task.test_inputs.to(self.device), task.test_targets.to(self.device)
        self.sampler = Sampler(
            data.num_clients, train.clients_per_round, train.sampling, train.seed
        )
        self.rounds = max(round(train.epochs * self.sampler.rounds_per_epoch), 1)

    def start(self) -> Training:
        """w^0, empty states, and a ledger in which everybody holds w^0."""
        clients, dim = self.sampler.num_clients, self.model.dim
        memory = None
        if isinstance(self.method, LocalMethod) and self.method.keeps_memory:
            if 8 * clients * dim > MEMORY_LIMIT:
                raise UserError(
                    f"clients' own error and momentum would take {8 * clients * dim / 1e9:.1f} GB "
                    f"({clients} clients, {dim} weights); set method.local_error and "
                    "method.local_momentum off, or take a smaller task"
                )
            memory = Memory(*(torch.zeros(clients, dim, device=self.device) for _ in range(2)))
        ledger = Ledger.new(dim, clients, self.rounds, self.downloads(), self.device)
        position = self.grid.start(self.origin)
        return Training(0, position, self.method.init(self.device), ledger, memory)

    def downloads(self) -> Downloads:
        """What the server keeps for clients that come back, empty."""
        if isinstance(self.grid, StepGrid):
            return StepDownloads(self.grid, self.config.download.log)
        return FloatDownloads(self.model.dim, getattr(torch, self.config.download.grid))

    def rate(self, round: int) -> float:
        return self.config.schedule.rate(round, self.rounds, self.config.train.baseline_epochs)

    @torch.no_grad()
    def evaluate(self, weights: Float32[Tensor, " dim"]) -> tuple[float, float]:
        """The metric and the mean loss on the test set."""
        task = self.config.task
        sums = weights.new_zeros(3, dtype=torch.float64)
        parameters = self.trainer.parameters(weights)
        for start in range(0, len(self.test[0]), task.eval_batch):
            part = slice(start, start + task.eval_batch)
            inputs, targets = (tensor[part] for tensor in self.test)
            if task.test_lengths is not None:
                inputs = cut(inputs, int(task.test_lengths[part].max()))
            outputs = self.trainer.outputs(parameters, as_images(inputs))
            quality = totals_and_counts(task.quality(outputs, targets))
            sums += torch.stack([*quality, task.loss(outputs, targets).sum()])
        total, count, loss = sums.tolist()  # waits for the device, once
        return task.summary(total / count), loss / len(self.test[0])

    def execute(
        self, out: Path, resume: bool = False, watch: Watch | None = None
    ) -> dict[str, Any]:
        """Train to the end and return the result. Raises DivergedError after recording it."""
        with alone_in(out):
            return self._execute(out, resume, watch)

    def _execute(self, out: Path, resume: bool, watch: Watch | None) -> dict[str, Any]:
        folder = RunFolder(out, self.config.settings, resume)
        if resume and (done := folder.result) is not None:
            return done
        found = load_checkpoint(out, self.downloads(), self.device) if resume else None
        training, seconds = found or (self.start(), 0.0)
        if len(training.weights) != self.model.dim:
            raise UserError(
                f"cannot resume {out}: its checkpoint has {len(training.weights)} weights, "
                f"but the model of {self.config.task.name} has {self.model.dim}"
            )
        if found and self.diagnosis:
            self.diagnosis.restore(load_diagnosis(out, self.device))
        folder.start(training.round)
        loop = Loop(self, folder, seconds, watch)
        try:
            return loop.run(training)
        finally:
            loop.checkpoints.close()
            folder.close()

    def traffic(self, ledger: Ledger) -> dict[str, float | None]:
        """Both counts of bytes, and how much less that is than uncompressed SGD (section 5)."""
        counts: dict[str, float | None] = {}
        for prefix, bytes in (("", ledger.bytes), ("wire_", ledger.wire_bytes)):
            counts |= {f"{prefix}upload_bytes": bytes.up, f"{prefix}download_bytes": bytes.down}
            found = self.compressions(*bytes)
            counts |= {f"{prefix}{name}": value for name, value in found.items()}
        return counts

    def compressions(self, up: int, down: int) -> dict[str, float | None]:
        """Relative to uncompressed SGD at the baseline's number of rounds."""
        rounds = round(self.config.train.baseline_epochs * self.sampler.rounds_per_epoch)
        per_epoch = self.sampler.num_clients
        if self.sampler.how == "uniform":
            per_epoch = self.sampler.rounds_per_epoch * self.sampler.per_round
        clients = per_epoch * rounds / self.sampler.rounds_per_epoch
        whole = BYTES_PER_NUMBER * self.model.dim * clients
        return {
            "upload_compression": whole / up if up else None,
            "download_compression": whole / down if down else None,
            "overall_compression": 2 * whole / (up + down) if up + down else None,
        }


class Loop:
    """The loop's bookkeeping: when to evaluate, log, save and give up."""

    def __init__(self, run: Run, folder: RunFolder, seconds: float, watch: Watch | None) -> None:
        self.run_, self.folder, self.watch = run, folder, watch
        self.checkpoints = CheckpointWriter(folder.path)
        self.seconds_before, self.began = seconds, time.perf_counter()
        every = run.config.train.eval_every * run.sampler.rounds_per_epoch
        self.eval_rounds = {round(every * i) for i in range(1, int(run.rounds / every) + 2)}
        self.eval_rounds.add(run.rounds)
        # Looking at the loss waits for the device, so on a GPU we look less often.
        self.look_every = 1 if run.device.type == "cpu" else 25
        self.losses: list[Tensor] = []
        self.first_loss: float | None = None
        # A run that was killed after its last round has nothing left to evaluate.
        self.line: Line = folder.last_line or {}
        self.metric: float | None = self.line.get(run.config.task.metric)

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def run(self, training: Training) -> dict[str, Any]:
        run = self.run_
        server_rate = None if run.config.local.is_one_gradient else 1.0
        steps = train_rounds(
            training, run.rounds, run.sampler.cohort, run.rate, run.clients, run.watched, run.grid,
            server_rate,
        )  # fmt: skip
        for training, merged in steps:
            self.losses.append(merged.loss)
            evaluates = training.round in self.eval_rounds
            if evaluates or training.round % self.look_every == 0:
                self._look(training, float(merged.loss))
            if evaluates:
                self._evaluate(training)
            every = run.config.train.checkpoint_every
            if training.round == run.rounds or (every and training.round % every == 0):
                diagnosis = run.diagnosis.tensors() if run.diagnosis else None
                self.checkpoints.save(training, self.seconds, diagnosis)
        return self._finish(training, "finished")

    def _look(self, training: Training, loss: float) -> None:
        self.first_loss = loss if self.first_loss is None else self.first_loss
        if not math.isfinite(loss) or loss > HOPELESS * (1 + self.first_loss):
            self._finish(training, "diverged")
            raise DivergedError(
                f"the loss became {loss:g} at round {training.round} of {self.run_.rounds}; "
                "try a lower schedule.peak, a wider sketch or a smaller k"
            )
        if self.watch is not None:
            up, down = training.ledger.wire_bytes
            self.watch(
                Progress(
                    training.round, self.run_.rounds, loss, self.metric, up, down, self.seconds
                )
            )

    def _evaluate(self, training: Training) -> None:
        run = self.run_
        self.metric, test_loss = run.evaluate(training.weights)
        up, down = training.ledger.bytes
        wire_up, wire_down = training.ledger.wire_bytes
        self.line = {
            "round": training.round,
            "epoch": training.round / run.sampler.rounds_per_epoch,
            "lr": run.rate(training.round - 1),
            "train_loss": float(torch.stack(self.losses).mean()),
            "test_loss": test_loss,
            run.config.task.metric: self.metric,
            "upload_bytes": up,
            "download_bytes": down,
            "wire_upload_bytes": wire_up,
            "wire_download_bytes": wire_down,
            "seconds": self.seconds,
            **(run.diagnosis.book.means() if run.diagnosis else {}),
        }
        self.losses.clear()
        self.folder.log(self.line)

    def _finish(self, training: Training, status: str) -> dict[str, Any]:
        run = self.run_
        finished = status == "finished"
        result = {
            "name": self.folder.path.name,
            "status": status,
            "task": run.config.task.name,
            "method": run.config.method,
            "metric": run.config.task.metric,
            "higher_is_better": run.config.task.higher_is_better,
            "value": self.metric if finished else None,
            "train_loss": self.line.get("train_loss") if finished else None,
            "test_loss": self.line.get("test_loss") if finished else None,
            "rounds": training.round,
            "epochs": training.round / run.sampler.rounds_per_epoch,
            "dim": run.model.dim,
            **run.traffic(training.ledger),
            "seconds": self.seconds,
            "seed": run.config.train.seed,
            "commit": commit(),
            "hardware": hardware(run.device),
            "versions": versions(),
            "config": run.config.settings,
        }
        self.folder.finish(result)
        return result
