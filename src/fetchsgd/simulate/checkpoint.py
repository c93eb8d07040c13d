"""Checkpoints: one safetensors file, replaced atomically, so that there is always a whole one."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fetchsgd.downloads import Downloads
from fetchsgd.errors import UserError
from fetchsgd.grids import Position
from fetchsgd.ledger import Ledger
from fetchsgd.methods import Memory, State
from fetchsgd.rounds import Training

FILE = "checkpoint.safetensors"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file, force it to disk, and only then take its place."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was there before is untouched"
        ) from error


def save_checkpoint(folder: Path, training: Training, seconds: float) -> None:
    tensors = {"weights": training.weights, "steps": training.position.steps}
    tensors |= {f"state.{name}": part for name, part in training.state._asdict().items()}
    tensors |= {f"ledger.{name}": part for name, part in training.ledger.tensors().items()}
    if training.memory is not None:
        tensors |= {f"memory.{name}": part for name, part in training.memory._asdict().items()}
    about = {"round": str(training.round), "seconds": repr(seconds)}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / FILE, save(plain, about))


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
        state = State(*(tensors[f"state.{name}"] for name in State._fields))
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
