"""What the size of sparse integers follows from: counts over their chunks and values.

One pass over the levels of many clients gives the nonzeros of each chunk, and how often each symbol
occurs in each page; a second, over the chunks, how often a chunk of each class has each number.
Both stay on the device of the levels: numba on a CPU, Triton on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int, Int32, Int64, UInt8
from torch import Tensor

from fetchsgd.threads import run_in_order
from fetchsgd.wire.chunk_loops import CLASSES, DIRECT, count_classes, count_levels
from fetchsgd.wire.chunks import COUNTS, SPAN, num_chunks, num_pages

SYMBOLS = 256  # symbols of values, and room

SEGMENT_CHUNKS = num_chunks(SPAN)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of n vectors. Segments without nonzeros are not part of `counts`."""

    counts: Int32[Tensor, "n classes counts"]  # chunks of a class with so many nonzeros
    values: Int32[Tensor, "n pages 256"]  # symbols of the nonzeros
    nonzeros: Int32[Tensor, "n segments"]
    # Sum of the magnitudes of values without symbols of their own; only of levels.
    larger: Int64[Tensor, " n"] | None = None

    @classmethod
    def cat(cls, parts: list[Statistics]) -> Statistics:
        """One after another."""
        return cls(
            torch.cat([part.counts for part in parts]),
            torch.cat([part.values for part in parts]),
            torch.cat([part.nonzeros for part in parts]),
        )

    @property
    def magnitude(self) -> Int64[Tensor, " n"]:
        """The sum of the magnitudes of all levels of each vector."""
        assert self.larger is not None
        direct = self.values[:, :, :DIRECT].sum(dim=1)
        of_symbol = (torch.arange(DIRECT, device=direct.device) + 1) // 2
        return (direct * of_symbol).sum(dim=1) + self.larger


class Counter:
    """Counts over vectors that come one after another, or many at once."""

    def __init__(self, rows: int, count: int, device: torch.device) -> None:
        self.device, self.rows = device, 0
        self.chunks = torch.empty(rows, num_chunks(count), dtype=torch.uint8, device=device)
        pages = num_pages(count)
        self.values = torch.zeros(rows, pages, SYMBOLS, dtype=torch.int32, device=device)
        self.larger = torch.zeros(rows, dtype=torch.int64, device=device)

    def add(self, levels: Int[Tensor, "*n count"]) -> None:
        levels = levels.view(-1, levels.shape[-1]) if levels.ndim == 1 else levels
        here = slice(self.rows, self.rows + len(levels))
        self.rows += len(levels)
        out = self.chunks[here], self.values[here], self.larger[here]
        if levels.is_cuda:
            from fetchsgd.wire.chunk_cuda import count_rows

            count_rows(levels, *out)
            return
        levels_, chunks, values, larger = (part.numpy() for part in (levels, *out))

        def row(i: int) -> None:
            larger[i] = count_levels(levels_[i], chunks[i], values[i])

        list(run_in_order(row, range(len(levels)), levels.numel()))

    def statistics(self) -> Statistics:
        assert self.rows == len(self.chunks)
        return from_chunks(self.chunks, self.values, self.larger)


def chunk_statistics(levels: Int[Tensor, "n count"]) -> Statistics:
    """Of the levels of n clients, a row each: int8, int16, int32, or int64 on a CPU."""
    rows, count = levels.shape
    counter = Counter(rows, count, levels.device)
    counter.add(levels)
    return counter.statistics()


def from_chunks(
    chunks: UInt8[Tensor, "n chunks"],
    values: Int32[Tensor, "n pages 256"],
    larger: Int64[Tensor, " n"] | None = None,
) -> Statistics:
    """From the nonzeros of each chunk."""
    rows, length = chunks.shape
    spans = -(-length // SEGMENT_CHUNKS)
    counts = torch.zeros(rows, CLASSES, COUNTS, dtype=torch.int32, device=chunks.device)
    nonzeros = torch.zeros(rows, spans, dtype=torch.int32, device=chunks.device)
    if chunks.is_cuda:
        from fetchsgd.wire.chunk_cuda import count_segments

        count_segments(chunks, counts, nonzeros)
    else:

        def row(i: int) -> None:
            count_classes(chunks[i].numpy(), SEGMENT_CHUNKS, counts[i].numpy(), nonzeros[i].numpy())

        list(run_in_order(row, range(rows), chunks.numel()))
    return Statistics(counts, values, nonzeros, larger)
