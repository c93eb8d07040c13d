"""CIFAR10 and CIFAR100 as in section 5.1 and appendix A.1: tiny clients, each of a single class.

CIFAR10 is 10,000 clients with five images, CIFAR100 is 50,000 clients with one. The data are the
publisher's binary files: from the user's folder, or downloaded once into the data folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks.augment import crop_and_flip
from fetchsgd.tasks.base import ClientData, HeldOut, Task, cross_entropy, is_correct
from fetchsgd.tasks.download import data_folder, fetch, unpack
from fetchsgd.tasks.resnet9 import ResNet9
from fetchsgd.tasks.small_network import SmallNetwork
from fetchsgd.tasks.splits import Split

PIXELS = 3 * 32 * 32

Examples = tuple[UInt8[Tensor, "n 3 32 32"], Int64[Tensor, " n"]]
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class DataFile:
    """A file of records. Without a digest its size and labels are checked, and no more."""

    name: str
    records: int
    sha256: str = ""


@dataclass(frozen=True)
class Published:
    """A data set as its authors publish it.

    size, sha256: of the archive, as in the checksums of TensorFlow Datasets.
    unpacked: the folder in the archive.
    labels: for each label byte of a record how many values it has; the last is what is learnt.
    mean, std: of red, green and blue over the training images; a test computes them.
    """

    title: str
    url: str
    size: int
    sha256: str
    unpacked: str
    train: tuple[DataFile, ...]
    test: DataFile
    labels: tuple[int, ...]
    mean: Channels
    std: Channels

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (*self.train, self.test)

    @property
    def record_bytes(self) -> int:
        return len(self.labels) + PIXELS


CIFAR10 = Published(
    title="CIFAR10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    size=170_052_171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    unpacked="cifar-10-batches-bin",
    train=tuple(
        DataFile(f"data_batch_{number}.bin", 10_000, digest)
        for number, digest in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            start=1,
        )
    ),
    test=DataFile(
        "test_batch.bin",
        10_000,
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    labels=(10,),
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
)

# No digests of the files: copies that hold the same images in another order will do.
CIFAR100 = Published(
    title="CIFAR100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    size=168_513_733,
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    unpacked="cifar-100-binary",
    train=(DataFile("train.bin", 50_000),),
    test=DataFile("test.bin", 10_000),
    labels=(20, 100),
    mean=(129.3, 124.1, 112.4),
    std=(68.2, 65.4, 70.4),
)


def preset(
    clients_per_round: int, peak: float, sketched_peak: float, density: float
) -> dict[str, dict[str, Any]]:
    """sketched_peak: of the rate with fresh hashes; density: of levels, where they are of one step.

    Both as measured to be best (docs/results.md).
    """
    fresh = {"cols": 650_000, "noise_limit": 1.0, "schedule": {"peak": sketched_peak}}
    levels = {
        "schedule": {"peak": 0.2},
        "upload": {"density": density},
        "download": {"step": 1.0, "by_size": True},
    }
    return {
        "train": {
            "epochs": 24.0,
            "baseline_epochs": 24.0,
            "clients_per_round": clients_per_round,
            "weight_decay": 5e-4,
            "dtype": "auto",
        },
        "schedule": {"kind": "triangular", "peak": peak, "pivot": 5.0},
        "download": {"step": 0.5},
        "methods": {
            "fetchsgd": {**fresh, "train": {"weight_decay_by": "server"}},
            "fetchsgd-paper": {"k": 50_000, "cols": 650_000},
            "local_topk": {"k": 50_000},
            "true_topk": {"k": 50_000},
            "messages": levels,
            "fedavg": {"local": {"epochs": 2}},
        },
    }


# By the number of classes.
PRESETS = {10: preset(100, 0.3, 0.22, 0.018), 100: preset(500, 0.2, 0.15, 0.06)}


def cifar10(
    seed: int = 0,
    folder: str = "",
    examples_per_client: int = 5,
    split: str = "one_class",
    alpha: float = 0.5,
    sizes: str = "equal",
    exponent: float = 1.5,
    channels: int = 0,
) -> Task:
    """CIFAR10: 10,000 clients with five images of a single class (section 5.1).

    `folder` holds the binary files; without it they are downloaded. channels: two small
    convolutions instead of ResNet9, the first with so many channels, and images as they are. For
    the rest: splits.py.
    """
    check_channels(channels)
    dealing = Split(split, examples_per_client, alpha, sizes, exponent, most=5000)
    return make_task("cifar10", CIFAR10, folder, dealing, seed, PRESETS[10], channels)


def cifar100(
    seed: int = 0,
    folder: str = "",
    examples_per_client: int = 1,
    split: str = "one_class",
    alpha: float = 0.5,
    sizes: str = "equal",
    exponent: float = 1.5,
    channels: int = 0,
) -> Task:
    """CIFAR100: 50,000 clients with one image (section 5.1); else as `cifar10`."""
    check_channels(channels)
    dealing = Split(split, examples_per_client, alpha, sizes, exponent, most=500)
    return make_task("cifar100", CIFAR100, folder, dealing, seed, PRESETS[100], channels)


def check_channels(channels: int) -> None:
    if channels < 0:
        raise ValueError(f"task.channels must be at least 0, got {channels}")


def make_task(
    name: str,
    source: Published,
    folder: str,
    dealing: Split,
    seed: int,
    preset: dict[str, dict[str, Any]],
    channels: int,
) -> Task:
    where = find_folder(source, folder)
    images, labels = read_train(source, where)
    clients = dealing.clients(labels.numpy(), numpy_generator(seed, "split", 1))
    return Task(
        name=name,
        train=ClientData.from_groups(images, labels, clients),
        test=partial(read_test, source, where),
        model=model_of(source, channels),
        loss=cross_entropy,
        quality=is_correct,
        augment=None if channels else crop_and_flip,
        preset=preset,
    )


def model_of(source: Published, channels: int) -> Callable[[], nn.Module]:
    classes, mean, std = source.labels[-1], source.mean, source.std
    if channels:
        return partial(SmallNetwork, classes, channels, mean, std)
    return partial(ResNet9, classes, mean, std)


def find_folder(source: Published, folder: str) -> Path:
    """The folder of the binary files: the archive's own, or one that holds them directly.

    Nothing is downloaded where the user names a folder.
    """
    base = Path(folder).expanduser().absolute() if folder else data_folder()
    if (base / source.unpacked).is_dir():
        return base / source.unpacked
    if folder and not base.is_dir():
        raise ValueError(
            f"there is no folder {base}; task.folder must name the folder of {source.title}'s "
            f"files {', '.join(file.name for file in source.files)}, available from "
            f"{source.url}, or be left out to download them"
        )
    if folder or (base / source.test.name).is_file():
        return base
    return unpack(fetch(source.url, source.sha256, source.size, base), source.unpacked)


@lru_cache(maxsize=1)  # a sweep makes the task once for each of its runs
def read_train(source: Published, folder: Path) -> Examples:
    files = [read_records(source, file, folder) for file in source.train]
    return parse(np.concatenate(files), source)


@lru_cache(maxsize=1)
def read_test(source: Published, folder: Path) -> HeldOut:
    return HeldOut(*parse(read_records(source, source.test, folder), source))


def read_records(source: Published, file: DataFile, folder: Path) -> NDArray[np.uint8]:
    """A file's records, one per row. A file that cannot be the published one is refused."""
    path = folder / file.name
    expected = file.records * source.record_bytes
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}; expected one of {expected} bytes as in {source.url}"
        )
    if (size := path.stat().st_size) != expected:
        raise ValueError(
            f"{path} has {size} bytes; expected {expected} as in the file of {source.url}"
        )
    content = np.fromfile(path, np.uint8)
    found = hashlib.sha256(content.data).hexdigest() if file.sha256 else ""
    if found != file.sha256:
        raise ValueError(
            f"{path} has SHA-256 {found}; expected {file.sha256} as of the file in {source.url}"
        )
    records = content.reshape(file.records, source.record_bytes)
    for position, values in enumerate(source.labels):
        if (largest := int(records[:, position].max())) >= values:
            raise ValueError(
                f"{path} has a label {largest} in byte {position} of a record; "
                f"expected labels below {values} as in the file of {source.url}"
            )
    return records


def parse(records: UInt8[np.ndarray, "n bytes"], source: Published) -> Examples:
    """Images and labels. A record is its labels, then the red, the green and the blue plane."""
    labels = len(source.labels)
    images = torch.from_numpy(np.ascontiguousarray(records[:, labels:])).view(-1, 3, 32, 32)
    return images, torch.from_numpy(records[:, labels - 1].astype(np.int64))
