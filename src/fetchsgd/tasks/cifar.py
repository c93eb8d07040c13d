"""CIFAR10 as in section 5.1 and appendix A.1: 10,000 clients with five images of a single class.

The data are the publisher's binary files, which must lie in a folder of the user's.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks.augment import crop_and_flip
from fetchsgd.tasks.base import ClientData, Task, cross_entropy, is_correct
from fetchsgd.tasks.resnet9 import ResNet9
from fetchsgd.tasks.splits import SPLITS

SOURCE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
UNPACKED = "cifar-10-batches-bin"
PIXELS = 3 * 32 * 32
FILE_BYTES = 10_000 * (1 + PIXELS)
TEST_FILE = "test_batch.bin"
# SHA-256 of the published files.
DIGESTS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    TEST_FILE: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
# Of red, green and blue over the 50,000 training images; a test computes them from the files.
MEAN = (125.3, 123.0, 113.9)
STD = (63.0, 62.1, 66.7)

PRESET: dict[str, dict[str, Any]] = {
    "train": {
        "epochs": 24.0,
        "baseline_epochs": 24.0,
        "clients_per_round": 100,
        "weight_decay": 5e-4,
    },
    "schedule": {"kind": "triangular", "peak": 0.3, "pivot": 5.0},
    "methods": {
        "fetchsgd": {"k": 50_000, "cols": 650_000},
        "local_topk": {"k": 50_000},
        "true_topk": {"k": 50_000},
        "fedavg": {"local": {"epochs": 2}},
    },
}

Examples = tuple[UInt8[Tensor, "n 3 32 32"], Int64[Tensor, " n"]]


def cifar10(
    seed: int = 0, folder: str = "", examples_per_client: int = 5, split: str = "one_class"
) -> Task:
    """`folder` holds the binary files; without it, FETCHSGD_DATA or ~/.cache/fetchsgd does."""
    if split not in SPLITS:
        raise ValueError(f"task.split must be one of {', '.join(SPLITS)}, got {split!r}")
    if not 1 <= examples_per_client <= 5000:
        raise ValueError(
            f"task.examples_per_client must be from 1 to 5000, got {examples_per_client}"
        )
    (images, labels), (test_images, test_labels) = read_cifar10(find_folder(folder))
    generator = numpy_generator(seed, "split", 1)
    clients = SPLITS[split](labels.numpy(), examples_per_client, generator)
    return Task(
        name="cifar10",
        train=ClientData.from_groups(images, labels, clients),
        test_inputs=test_images,
        test_targets=test_labels,
        model=partial(ResNet9, 10, MEAN, STD),
        loss=cross_entropy,
        quality=is_correct,
        augment=crop_and_flip,
        preset=PRESET,
    )


def find_folder(folder: str) -> Path:
    """The folder of the binary files: the one named, or the archive's own inside it."""
    base = folder or os.environ.get("FETCHSGD_DATA") or "~/.cache/fetchsgd"
    path = Path(base).expanduser().absolute()
    found = path / UNPACKED if (path / UNPACKED).is_dir() else path
    if not found.is_dir():
        raise ValueError(
            f"there is no folder {found}; task.folder or the environment variable FETCHSGD_DATA "
            f"must name the folder of CIFAR10's files {', '.join(DIGESTS)}, "
            f"which can be had from {SOURCE}"
        )
    return found


@lru_cache(maxsize=1)  # a sweep makes the task once for each of its runs
def read_cifar10(folder: Path) -> tuple[Examples, Examples]:
    """The training and the test set."""
    records = {name: read_records(folder / name, digest) for name, digest in DIGESTS.items()}
    test = records.pop(TEST_FILE)
    return parse(np.concatenate(list(records.values()))), parse(test)


def read_records(path: Path, digest: str) -> NDArray[np.uint8]:
    """A file's records, one a row. Any other file than the published one is refused."""
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}; expected one of {FILE_BYTES} bytes as in {SOURCE}"
        )
    if (size := path.stat().st_size) != FILE_BYTES:
        raise ValueError(
            f"{path} has {size} bytes; expected {FILE_BYTES} as in the file of {SOURCE}"
        )
    content = np.fromfile(path, np.uint8)
    if (found := hashlib.sha256(content.data).hexdigest()) != digest:
        raise ValueError(
            f"{path} has SHA-256 {found}; expected {digest} as of the file in {SOURCE}"
        )
    return content.reshape(-1, 1 + PIXELS)


def parse(records: UInt8[np.ndarray, "n 3073"]) -> Examples:
    """Images and labels. A record is a label, then the red, the green and the blue plane."""
    images = torch.from_numpy(np.ascontiguousarray(records[:, 1:])).view(-1, 3, 32, 32)
    return images, torch.from_numpy(records[:, 0].astype(np.int64))
