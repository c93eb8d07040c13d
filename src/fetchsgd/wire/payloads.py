"""What travels: vectors, sketches, sparse updates and whole models, with their values.

Clients send `SketchTable`s up, the server sends `SparseUpdate`s down (Algorithm 1, lines 8 and 15).
Every payload takes every kind of values. Tensors may be on any device; `encode` moves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

import torch
from jaxtyping import Int64
from torch import Tensor

from fetchsgd.wire.header import MOST, SKETCHES
from fetchsgd.wire.values import Integers, Values


@dataclass(frozen=True, eq=False)
class DenseVector:
    """A gradient, or the difference after local steps."""

    values: Values
    round: int = 0

    def __post_init__(self) -> None:
        _check_values("DenseVector", self.values)
        _check_number("round", self.round, 0, 2**32 - 1)


@dataclass(frozen=True, eq=False)
class WholeModel:
    """All weights, for a client that holds none."""

    values: Values
    round: int = 0

    def __post_init__(self) -> None:
        _check_values("WholeModel", self.values)
        _check_number("round", self.round, 0, 2**32 - 1)


@dataclass(frozen=True, eq=False)
class SketchTable:
    """The table of a CountSketch, row after row. `hash` is the name of its hash."""

    dim: int
    rows: int
    cols: int
    block: int
    seed: int
    values: Values
    round: int = 0
    hash: str = "blocks"

    def __post_init__(self) -> None:
        _check_values("SketchTable", self.values)
        _check_number("round", self.round, 0, 2**32 - 1)
        _check_number("dim", self.dim, 0, MOST)
        _check_number("seed", self.seed, 0, 2**64 - 1)
        for name in ("rows", "cols", "block"):
            _check_number(name, getattr(self, name), 0, 2**32 - 1)
        if self.hash not in SKETCHES:
            raise ValueError(f"hash must be one of {', '.join(SKETCHES)}, not {self.hash!r}")
        if self.values.count != self.rows * self.cols:
            raise ValueError(
                f"a table of {self.rows} rows and {self.cols} cols has {self.rows * self.cols} "
                f"values, not {self.values.count}"
            )


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """Values for some coordinates of a vector; the others do not change.

    `since` is the version that it changes; 0 means the initial weights, which everyone can make.
    """

    dim: int
    indices: Int64[Tensor, " count"]
    values: Values
    round: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        _check_values("SparseUpdate", self.values)
        _check_number("round", self.round, 0, 2**32 - 1)
        _check_number("since", self.since, 0, self.round)
        _check_number("dim", self.dim, 0, MOST)
        _check_indices(self.indices, self.dim)
        if self.values.count != len(self.indices):
            raise ValueError(
                f"{len(self.indices)} indices need as many values, not {self.values.count}"
            )
        if len(self.indices) == self.dim > 0:
            check_every_position(self.values)
        if isinstance(self.values, Integers) and bool((self.values.values == 0).any()):
            raise ValueError("an integer that is 0 changes nothing: leave it out of the update")


def check_every_position(values: Values) -> None:
    """Positions that go without saying are bounded by the bytes of values, and zeros have none."""
    if getattr(values, "mostly_zero", False):
        raise ValueError(
            "values that are mostly zero have no positions of their own for every coordinate: "
            "send them as a DenseVector"
        )


Payload = DenseVector | SketchTable | SparseUpdate | WholeModel


def _check_values(payload: str, values: object) -> None:
    if not isinstance(values, Values):
        hint = "; Floats(tensor) sends it as it is" if isinstance(values, Tensor) else ""
        raise TypeError(
            f"the values of a {payload} must be Floats, Integers or what a quantiser made, not "
            f"{type(values).__name__}{hint}"
        )


def _check_number(name: str, value: int, least: int, most: int) -> None:
    try:
        index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")


def _check_indices(indices: Tensor, dim: int) -> None:
    if not isinstance(indices, Tensor):
        raise TypeError(f"indices must be a tensor of int64, not {type(indices).__name__}")
    if indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64, not {indices.dtype}")
    if indices.ndim != 1:
        raise ValueError(f"indices must have one dimension, not shape {tuple(indices.shape)}")
    if len(indices) == 0:
        return
    if not bool((indices[1:] > indices[:-1]).all()):
        raise ValueError("indices must be sorted and distinct")
    if int(indices[0]) < 0 or int(indices[-1]) >= dim:
        raise ValueError(
            f"indices must be from 0 to {dim - 1}, not from {int(indices[0])} to {int(indices[-1])}"
        )
