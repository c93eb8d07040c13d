"""Checkpoints: one safetensors file, replaced atomically, so that there is always a whole one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fetchsgd.errors import UserError, from_os
from fetchsgd.runs.files import CHECKPOINT as FILE
from fetchsgd.runs.files import write_atomically
from fetchsgd.server.grids import Downloads, GridWeights
from fetchsgd.server.ledger import Ledger
from fetchsgd.server.rounds import Training

EARLIER = "checkpoint-earlier.safetensors"  # of a round after which all was well
# 1: steps of a grid came from the device's own arithmetic. 2: without a checksum.
FORMAT, WITH_CHECKSUM = 3, 3
OLDEST_STEPS = 2

CHECKSUM = "checksum"  # in the metadata

Tensors = dict[str, Tensor]


def need_safetensors() -> None:
    """That it is missing shows before a run starts, not when it first saves."""
    import safetensors  # noqa: F401


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood, the seconds it had taken, and what others keep beside the training."""

    training: Training
    seconds: float
    beside: dict[str, Tensors]  # by who keeps it


class CheckpointWriter:
    """Saves checkpoints while training goes on: only copying the state takes its time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future[None] | None = None

    def save(
        self,
        training: Training,
        seconds: float,
        beside: Mapping[str, Tensors] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """`keep` puts it aside as well, until the next one that is kept."""
        self.wait()
        about = {"format": str(FORMAT), "round": str(training.round), "seconds": repr(seconds)}
        parts = dict(parts_of(training))
        for owner, tensors in (beside or {}).items():
            parts |= {f"{owner}.{name}": part for name, part in tensors.items()}
        state = {name: part.detach().to("cpu", copy=True) for name, part in parts.items()}
        self.writing = self.thread.submit(self._write, state, about, keep)

    def _write(self, state: Tensors, about: dict[str, str], keep: bool) -> None:
        from safetensors.torch import save  # of an extra: a run without a folder needs none

        plain = {name: part.contiguous() for name, part in state.items()}
        content = save(plain, about | {CHECKSUM: checksum_of(plain, about)})
        write_atomically(self.path, content)
        if keep:
            self._keep(content)

    def _keep(self, content: bytes) -> None:
        """A second name for the same file, which the next checkpoint replaces under the first."""
        aside, link = self.path.with_name(EARLIER), self.path.with_name(EARLIER + ".link")
        try:
            link.unlink(missing_ok=True)
            os.link(self.path, link)
            link.replace(aside)
        except OSError:  # a file system without links
            write_atomically(aside, content)

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
    yield from (("weights", training.weights), ("steps", training.place.steps))
    if training.size is not None:
        yield "size", training.size
    groups = {"state": training.state, "ledger": training.ledger.tensors()}
    if training.memory is not None:
        groups["memory"] = training.memory
    for group, tensors in groups.items():
        for name, part in tensors.items():
            yield f"{group}.{name}", part


def checksum_of(tensors: Tensors, about: Mapping[str, str]) -> str:
    """CRC-32 of everything that a checkpoint says: safetensors has none of its own."""
    told = sorted((name, text) for name, text in about.items() if name != CHECKSUM)
    found = zlib.crc32(repr(told).encode())
    for name in sorted(tensors):
        part = tensors[name].detach().cpu().contiguous()
        found = zlib.crc32(f"{name} {part.dtype} {list(part.shape)}".encode(), found)
        found = zlib.crc32(part.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _check_whole(tensors: Tensors, about: Mapping[str, str]) -> None:
    """ValueError where a byte has changed on the disk. Earlier versions wrote no checksum."""
    if CHECKSUM not in about and int(about.get("format", 1)) < WITH_CHECKSUM:
        return
    if about.get(CHECKSUM) != checksum_of(tensors, about):
        raise ValueError("its checksum is wrong, so the file was damaged on the disk")


def saved_round(folder: Path) -> int | None:
    """After how many rounds the checkpoint of a folder was saved; None if there is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / FILE, "pt") as file:
            return int(file.metadata()["round"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


class Saved(NamedTuple):
    """What a checkpoint file holds."""

    about: dict[str, str]
    tensors: Tensors


def read_checkpoint(folder: Path, device: torch.device) -> Saved | None:
    """What was saved, None if the run had not come that far."""
    path = folder / FILE
    if not path.exists():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt", device=str(device)) as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        _check_whole(tensors, about)
    except OSError as error:
        raise from_os(f"{path} cannot be read", error) from error
    except (SafetensorError, ValueError) as error:
        raise _not_ours(folder, error) from error
    return Saved(about, tensors)


def load_checkpoint(
    folder: Path, start: Training, downloads: Downloads, device: torch.device
) -> Checkpoint | None:
    """Where the run of a folder stood, None if nothing is saved. `start` is its beginning."""
    saved = read_checkpoint(folder, device)
    return None if saved is None else restored(saved, folder, start, downloads, device)


def restored(
    saved: Saved, folder: Path, start: Training, downloads: Downloads, device: torch.device
) -> Checkpoint:
    """Where a run stood, from what a checkpoint of its folder holds."""
    try:
        return _restored(saved.about, _grouped(saved.tensors), start, downloads, device)
    except UserError as error:
        raise UserError(f"cannot resume {folder}: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise _not_ours(folder, error) from error


def _not_ours(folder: Path, error: Exception) -> UserError:
    earlier = folder / EARLIER
    way_out = f"; {earlier} is of an earlier round" if earlier.exists() else ""
    return UserError(f"{folder / FILE} is not a checkpoint of this program: {error}{way_out}")


def _grouped(tensors: Tensors) -> dict[str, Tensors]:
    """By what stands before the first dot of a name; nothing before it for the run's own."""
    groups: dict[str, Tensors] = {"": {}}
    for name, part in tensors.items():
        group, dot, rest = name.partition(".")
        groups.setdefault(group if dot else "", {})[rest if dot else name] = part
    return groups


def _restored(
    about: dict[str, str],
    groups: dict[str, Tensors],
    start: Training,
    downloads: Downloads,
    device: torch.device,
) -> Checkpoint:
    own = groups.pop("")
    place = GridWeights(own["weights"], own["steps"])
    if int(about.get("format", 1)) < OLDEST_STEPS and len(place.steps):
        raise UserError(
            "the checkpoint is of an earlier version, whose steps (download.grid = 'steps') had "
            "other sizes; start the run anew in another folder"
        )
    if len(place.weights) != len(start.weights):
        raise UserError(
            f"the checkpoint has {len(place.weights)} weights, but the model {len(start.weights)}"
        )
    saved = groups.pop("state")
    state = {name: saved[name] for name in start.state}
    ledger = Ledger.restored(groups.pop("ledger"), downloads, device)
    rounds = len(start.ledger.changed_in) - 1
    if int(about["round"]) > rounds:
        raise UserError(f"the checkpoint is of round {about['round']}, and the run has {rounds}")
    ledger = ledger.for_rounds(rounds)
    memory = groups.pop("memory", None)
    if (memory is None) != (start.memory is None):
        raise UserError("the checkpoint is of a run whose clients remember something else")
    training = Training(int(about["round"]), place, state, ledger, memory, own.get("size"))
    return Checkpoint(training, float(about["seconds"]), groups)
