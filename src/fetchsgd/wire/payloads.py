"""What travels: vectors, sketches, sparse updates and whole models, with their values.

Clients send `SketchTable`s up, the server sends `SparseUpdate`s down (Algorithm 1, lines 8 and 15).
Every payload takes every kind of values. Tensors may be on any device; `encode` moves them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fetchsgd.quantisers.levels import Quantised
from fetchsgd.wire.header import MOST

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Floats:
    """Numbers as they are: float32, float16 or bfloat16."""

    values: Float[Tensor, " count"]

    def __post_init__(self) -> None:
        if self.values.dtype not in FLOATS:
            raise ValueError(f"Floats takes float32, float16 or bfloat16, not {self.values.dtype}")
        _check_vector("values", self.values)

    def floats(self):
        return self.values.float()

    def section_bytes(self):
        return len(self.values) * self.values.element_size()


@dataclass(frozen=True, eq=False)
class Integers:
    """Whole numbers; small ones take few bits."""

    values: Int64[Tensor, " count"]

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int64:
            raise ValueError(f"Integers takes int64, not {self.values.dtype}")
        _check_vector("values", self.values)


Values = Floats | Quantised | Integers


@dataclass(frozen=True, eq=False)
class DenseVector:
    """A gradient, or the difference after local steps."""

    values: Values
    round: int = 0

    def __post_init__(self) -> None:
        _check_number("round", self.round, 0, 2**32 - 1)


@dataclass(frozen=True, eq=False)
class WholeModel:
    """All weights, for a client that holds none."""

    values: Values
    round: int = 0

    def __post_init__(self) -> None:
        _check_number("round", self.round, 0, 2**32 - 1)


@dataclass(frozen=True, eq=False)
class SketchTable:
    """The table of a CountSketch, row after row."""

    dim: int
    rows: int
    cols: int
    block: int
    seed: int
    values: Values
    round: int = 0

    def __post_init__(self) -> None:
        _check_number("round", self.round, 0, 2**32 - 1)
        _check_number("dim", self.dim, 0, MOST)
        _check_number("seed", self.seed, 0, 2**64 - 1)
        for name in ("rows", "cols", "block"):
            _check_number(name, getattr(self, name), 0, 2**32 - 1)
        if count_of(self.values) != self.rows * self.cols:
            raise ValueError(
                f"a table of {self.rows} rows and {self.cols} cols has {self.rows * self.cols} "
                f"values, not {count_of(self.values)}"
            )


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """Values for some coordinates of a vector; the others do not change.

    `since` is the version that it changes; 0 stands for the initial weights, which all can make.
    """

    dim: int
    indices: Int64[Tensor, " count"]
    values: Values
    round: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        _check_number("round", self.round, 0, 2**32 - 1)
        _check_number("since", self.since, 0, self.round)
        _check_number("dim", self.dim, 0, MOST)
        _check_indices(self.indices, self.dim)
        if count_of(self.values) != len(self.indices):
            raise ValueError(
                f"{len(self.indices)} indices need as many values, not {count_of(self.values)}"
            )
        if isinstance(self.values, Integers) and bool((self.values.values == 0).any()):
            raise ValueError("an integer that is 0 changes nothing: leave it out of the update")


Payload = DenseVector | SketchTable | SparseUpdate | WholeModel


def count_of(values: Values) -> int:
    return values.count if isinstance(values, Quantised) else len(values.values)


def _check_vector(name: str, values: Tensor) -> None:
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not shape {tuple(values.shape)}")


def _check_number(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")


def _check_indices(indices: Tensor, dim: int) -> None:
    if indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64, not {indices.dtype}")
    _check_vector("indices", indices)
    if len(indices) == 0:
        return
    if not bool((indices[1:] > indices[:-1]).all()):
        raise ValueError("indices must be sorted and distinct")
    if int(indices[0]) < 0 or int(indices[-1]) >= dim:
        raise ValueError(
            f"indices must be from 0 to {dim - 1}, not from {int(indices[0])} to {int(indices[-1])}"
        )
