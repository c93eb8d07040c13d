"""Checkpoints: one safetensors file, replaced atomically, so that there is always a whole one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.methods import Memory, State
from fetchsgd.runs.files import CHECKPOINT as FILE
from fetchsgd.runs.files import write_atomically
from fetchsgd.server.downloads import Downloads
from fetchsgd.server.grids import Position
from fetchsgd.server.ledger import Ledger
from fetchsgd.server.rounds import Training

DIAGNOSIS = "diagnosis."  # names of what is no part of the training


class CheckpointWriter:
    """Saves checkpoints while training goes on: only copying the state takes its time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future[None] | None = None

    def save(
        self, training: Training, seconds: float, diagnosis: Mapping[str, Tensor] | None = None
    ) -> None:
        self.wait()
        about = {"round": str(training.round), "seconds": repr(seconds)}
        parts = dict(parts_of(training))
        parts |= {f"{DIAGNOSIS}{name}": part for name, part in (diagnosis or {}).items()}
        state = {name: part.detach().to("cpu", copy=True) for name, part in parts.items()}
        self.writing = self.thread.submit(self._write, state, about)

    def _write(self, state: dict[str, Tensor], about: dict[str, str]) -> None:
        plain = {name: part.contiguous() for name, part in state.items()}
        write_atomically(self.path, save(plain, about))

    def wait(self) -> None:
        """Until the last one is on the disk; raises what went wrong there."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self.thread.shutdown()


def parts_of(training: Training) -> Iterator[tuple[str, Tensor]]:
    """Everything that a training is, by name."""
    yield from (("weights", training.weights), ("steps", training.position.steps))
    groups = {"state": training.state._asdict(), "ledger": training.ledger.tensors()}
    if training.memory is not None:
        groups["memory"] = training.memory._asdict()
    for group, tensors in groups.items():
        for name, part in tensors.items():
            yield f"{group}.{name}", part


def load_checkpoint(
    folder: Path, downloads: Downloads, device: torch.device
) -> tuple[Training, float] | None:
    """Where the run stood and the seconds it had taken; None if it had not come that far."""
    path = folder / FILE
    if not path.exists():
        return None
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            about = file.metadata()
            for name in file.keys():  # noqa: SIM118
                tensors[name] = file.get_tensor(name)
        saved = {f"state.{name}": part for name, part in State._field_defaults.items()} | tensors
        state = State(*(saved[f"state.{name}"] for name in State._fields))
        prefix = "ledger."
        kept = {n[len(prefix) :]: part for n, part in tensors.items() if n.startswith(prefix)}
        ledger = Ledger.restored(kept, downloads, device)
        memory = None
        if "memory.error" in tensors:
            memory = Memory(*(tensors[f"memory.{name}"] for name in Memory._fields))
        position = Position(tensors["weights"], tensors["steps"])
        training = Training(int(about["round"]), position, state, ledger, memory)
        return training, float(about["seconds"])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not a checkpoint of this program: {error}") from error


def load_diagnosis(folder: Path, device: torch.device) -> dict[str, Tensor]:
    """What was saved beside the training, of a checkpoint that `load_checkpoint` has read."""
    with safe_open(folder / FILE, "pt", device=str(device)) as file:
        names = [name for name in file.keys() if name.startswith(DIAGNOSIS)]  # noqa: SIM118
        return {name.removeprefix(DIAGNOSIS): file.get_tensor(name) for name in names}
