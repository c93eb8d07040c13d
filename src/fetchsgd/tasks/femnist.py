"""FEMNIST as in section 5.2 and appendix A.2: handwritten characters, each client one writer.

The data are the JSON files that LEAF's own script writes, which the user keeps in a folder.
Reading 4 GB of them takes minutes, so what was read is kept beside them, in one file of arrays. It
serves as long as the shards are the same by name, size and time, and is made again otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from fetchsgd.tasks.augment import WHITE, warp_writing
from fetchsgd.tasks.base import ClientData, Task, cross_entropy, is_correct
from fetchsgd.tasks.download import data_folder
from fetchsgd.tasks.leaf import CLASSES, PIXELS, read_users
from fetchsgd.tasks.resnet101 import ResNet101

RECIPE = (
    "it is made with LEAF (github.com/TalwalkarLab/leaf): run "
    "'./preprocess.sh -s niid --sf 1.0 -k 0 -t sample' in its folder data/femnist, and name that "
    "folder as task.folder"
)
SPLITS = ("train", "test")
CACHE = "fetchsgd-femnist.npz"
CACHE_VERSION = 1
DIGITS = 10
INK = 0.13, 0.31  # mean and deviation of a digit's pixels, from 0 for paper to 1

PRESET: dict[str, dict[str, Any]] = {
    "train": {
        "epochs": 1.0,
        "baseline_epochs": 1.0,
        "clients_per_round": 3,
        "weight_decay": 5e-4,
        "eval_every": 0.1,
    },
    "schedule": {"kind": "triangular", "peak": 0.01, "pivot": 0.2},
    "download": {"step": 0.05},
    "methods": {
        "fetchsgd": {"cols": 2_000_000},
        "fetchsgd-paper": {"k": 100_000, "cols": 2_000_000},
        "local_topk": {"k": 200_000},
        "true_topk": {"k": 100_000},
        "fedavg": {"local": {"epochs": 1, "batch_size": 20}, "train": {"epochs": 0.25}},
    },
}


class Samples(NamedTuple):
    """The samples of all users, one user after another, and how many each one has."""

    images: UInt8[np.ndarray, "n 784"]
    labels: UInt8[np.ndarray, " n"]
    sizes: Int64[np.ndarray, " users"]


Shards = dict[str, tuple[Path, ...]]  # by split


def femnist(
    seed: int = 0,  # noqa: ARG001 (writers are who they are)
    folder: str = "",
    channels: int = 0,
) -> Task:
    """FEMNIST: handwritten characters, each client one writer (section 5.2).

    `folder` holds LEAF's data/; without it, femnist in FETCHSGD_DATA or ~/.cache/fetchsgd does.

    Data of digits alone get a network with 10 outputs, all others one with 62. channels: two small
    convolutions instead of ResNet101, the first with so many channels, and writing as it is.
    """
    if channels < 0:
        raise ValueError(f"task.channels must be at least 0, got {channels}")
    where = find_folder(folder)
    shards = find_shards(where)
    train, test = load(where / "data" / CACHE, tuple(shards.items()), key_of(shards))
    classes = DIGITS if max(train.labels.max(), test.labels.max()) < DIGITS else CLASSES
    images, targets = tensors(train)
    test_images, test_targets = tensors(test)
    return Task(
        name="femnist",
        train=ClientData(images, targets, np.concatenate([[0], np.cumsum(train.sizes)])),
        test_inputs=test_images,
        test_targets=test_targets,
        model=partial(SmallNetwork, classes, channels) if channels else partial(ResNet101, classes),
        loss=cross_entropy,
        quality=is_correct,
        augment=None if channels else warp_writing,
        preset=PRESET,
    )


class SmallNetwork(nn.Module):
    """Two convolutions and a linear layer, for runs that take a minute on a processor's core."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * channels * 7 * 7, classes),
        )

    def forward(self, images: UInt8[Tensor, "n 1 28 28"]) -> Float[Tensor, "n classes"]:
        mean, deviation = INK
        scores: Tensor = self.layers((1 - images.float() / WHITE - mean) / deviation)
        return scores


def tensors(samples: Samples) -> tuple[UInt8[Tensor, "n 1 28 28"], Int64[Tensor, " n"]]:
    images = torch.from_numpy(samples.images).view(-1, 1, 28, 28)
    return images, torch.from_numpy(samples.labels.astype(np.int64))


def find_folder(folder: str) -> Path:
    """The folder in which LEAF's data/ is."""
    return Path(folder).expanduser().absolute() if folder else data_folder() / "femnist"


def find_shards(folder: Path) -> Shards:
    """The JSON files of both splits."""
    shards = {}
    for split in SPLITS:
        within = folder / "data" / split
        if not within.is_dir():
            raise ValueError(f"there is no folder {within} with FEMNIST's data; {RECIPE}")
        shards[split] = tuple(sorted(within.glob("*.json")))
        if not shards[split]:
            raise ValueError(f"there is no file *.json with FEMNIST's data in {within}; {RECIPE}")
    return shards


def key_of(shards: Shards) -> str:
    """A digest of the names, sizes and times of the shards."""
    facts: list[Any] = [CACHE_VERSION]
    for split, paths in shards.items():
        for path in paths:
            try:
                stat = path.stat()
            except OSError as error:
                raise ValueError(f"cannot read {path}: {error.strerror}") from error
            facts.append([split, path.name, stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@lru_cache(maxsize=1)  # a sweep makes the task once for each of its runs
def load(
    cache: Path, shards: tuple[tuple[str, tuple[Path, ...]], ...], key: str
) -> tuple[Samples, Samples]:
    """The training and the test set, from the cache if it was made from these very shards."""
    found = read_cache(cache, key)
    if found is None:
        train, test = (read_shards(split, paths) for split, paths in shards)
        found = train, test
        write_cache(cache, key, found)
    return found


def read_shards(split: str, paths: tuple[Path, ...]) -> Samples:
    """All users of a split. Those without samples are left out, and the user is told so."""
    # Buffers that grow in place: lists of arrays would have to be copied together in the end.
    images, labels = bytearray(), bytearray()
    sizes: dict[str, int] = {}
    for path in paths:
        for user, pixels, classes in read_users(path):
            if user in sizes:
                raise ValueError(
                    f"{path}: user {user!r} is in another file of {path.parent} too; "
                    "are there files of two runs of LEAF's script?"
                )
            sizes[user] = len(classes)
            images += pixels.data
            labels += classes.data
    kept = np.array([size for size in sizes.values() if size], dtype=np.int64)
    if not len(kept):
        raise ValueError(f"no user in {paths[0].parent} has any samples; {RECIPE}")
    if split == "train" and len(kept) < len(sizes):
        first = next(user for user, size in sizes.items() if not size)
        warnings.warn(
            f"{len(sizes) - len(kept)} of {len(sizes)} users in {paths[0].parent} have no samples "
            f"and are left out, such as {first!r}",
            stacklevel=2,
        )
    pixels = np.frombuffer(images, np.uint8).reshape(-1, PIXELS)
    return Samples(pixels, np.frombuffer(labels, np.uint8), kept)


def read_cache(path: Path, key: str) -> tuple[Samples, Samples] | None:
    """What was kept; None if there is none, or it is of other shards, or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if str(arrays["key"]) != key:
                return None
            # The file holds a checksum of each array, and reading compares it.
            train, test = (
                Samples(*(arrays[f"{split}_{name}"] for name in Samples._fields))
                for split in SPLITS
            )
            return train, test
    except Exception:  # a damaged file fails in a dozen ways, and all of them mean: make it again
        return None


def write_cache(path: Path, key: str, parts: tuple[Samples, Samples]) -> None:
    """Beside the shards, whole or not at all. Where that cannot be, the run goes on without."""
    arrays = {
        f"{split}_{name}": array
        for split, samples in zip(SPLITS, parts, strict=True)
        for name, array in samples._asdict().items()
    }
    partial_file = path.with_name(f"{path.name}.{os.getpid()}.partial")  # runs may start together
    try:
        with partial_file.open("wb") as file:
            np.savez(file, key=np.array(key), **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(path)
    except OSError as error:
        warnings.warn(
            f"cannot write {path}: {error.strerror}; the next run must read the shards again",
            stacklevel=2,
        )
    finally:
        partial_file.unlink(missing_ok=True)
