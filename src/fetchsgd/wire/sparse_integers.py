"""Integers of which most are zero, as values of a payload; how they are coded is in chunks.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor

from fetchsgd.wire.chunk_loops import count_chunks, count_values, list_levels
from fetchsgd.wire.chunk_sizes import best_code, sparse_bytes
from fetchsgd.wire.chunk_statistics import SYMBOLS, Statistics, from_chunks
from fetchsgd.wire.chunks import num_chunks, num_pages, read_sparse, write_sparse
from fetchsgd.wire.reader import Reader
from fetchsgd.wire.values import Coding, array_of, register_section

SPARSE_INTEGERS = 5


@dataclass(frozen=True, eq=False)
class SparseIntegers:
    """`count` whole numbers: `values` at `indices`, which are sorted, and zeros elsewhere."""

    count: int
    indices: Int64[Tensor, " n"]
    values: Int64[Tensor, " n"]

    # A message has bytes for what is not zero alone (payloads.py).
    mostly_zero: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for part in (self.indices, self.values):
            if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.ndim != 1:
                raise TypeError("SparseIntegers takes indices and values as vectors of int64")
        if len(self.indices) != len(self.values):
            raise ValueError(
                f"{len(self.indices)} indices need as many values, not {len(self.values)}"
            )
        if not len(self.indices):
            return
        if not bool((self.indices[1:] > self.indices[:-1]).all()):
            raise ValueError("indices must be sorted and distinct")
        if int(self.indices[0]) < 0 or int(self.indices[-1]) >= self.count:
            raise ValueError(f"indices must be from 0 to {self.count - 1}")
        if bool((self.values == 0).any()):
            raise ValueError("only values that are not zero have a place among sparse integers")

    @classmethod
    def from_dense(cls, levels: Int[Tensor, " count"]) -> SparseIntegers:
        """Of a vector with its zeros."""
        array = array_of(levels)
        size = np.count_nonzero(array)
        indices, values = (np.empty(size, dtype=np.int64) for _ in range(2))
        list_levels(array, indices, values)
        return cls(len(array), torch.from_numpy(indices), torch.from_numpy(values))

    def dense(self) -> Int64[Tensor, " count"]:
        """With all zeros."""
        out = torch.zeros(self.count, dtype=torch.int64, device=self.indices.device)
        out[self.indices] = self.values
        return out

    def floats(self) -> Float32[Tensor, " count"]:
        out = torch.zeros(self.count, device=self.indices.device)
        out[self.indices] = self.values.float()
        return out

    def section_bytes(self) -> float:
        return float(sparse_bytes(self.statistics)[0])

    def coding(self) -> Coding:
        return Coding(SPARSE_INTEGERS, chunks=best_code(self.statistics))

    def write(self, coding: Coding) -> bytes:
        return write_sparse(
            array_of(self.indices), array_of(self.values), self.count, coding.chunks
        )

    @cached_property
    def statistics(self) -> Statistics:
        return sparse_statistics(self.count, self.indices, self.values)


def sparse_statistics(
    count: int, indices: Int64[Tensor, " n"], nonzeros: Int64[Tensor, " n"]
) -> Statistics:
    """Of one vector, from its nonzeros."""
    chunks = np.zeros((1, num_chunks(count)), dtype=np.uint8)
    count_chunks(array_of(indices), 0, chunks[0])
    symbols = np.zeros((1, num_pages(count), SYMBOLS), dtype=np.int32)
    count_values(array_of(indices), array_of(nonzeros), 0, symbols[0])
    return from_chunks(torch.from_numpy(chunks), torch.from_numpy(symbols))


def read_sparse_integers(reader: Reader, format: int, count: int) -> tuple[SparseIntegers, Coding]:
    indices, nonzeros, code = read_sparse(reader, count)
    values = SparseIntegers(count, torch.from_numpy(indices), torch.from_numpy(nonzeros))
    return values, Coding(format, chunks=code)


register_section(SPARSE_INTEGERS, read_sparse_integers)
