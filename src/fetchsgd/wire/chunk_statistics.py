"""What the size of sparse integers follows from: counts over their chunks and values.

One pass over the levels of many clients gives the nonzeros of each chunk, and how often each symbol
occurs in each page; a second, over the chunks, how often a chunk of each class has each number.
Both stay on the device of the levels: numba on a CPU, Triton on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int, Int64, UInt8
from torch import Tensor

from fetchsgd.threads import run_in_order
from fetchsgd.wire.chunk_loops import CLASSES, count_classes, count_levels
from fetchsgd.wire.chunks import COUNTS, SPAN, num_chunks, num_pages

SYMBOLS = 256  # symbols of values, and room

SEGMENT_CHUNKS = num_chunks(SPAN)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of n vectors. Segments without nonzeros are not part of `counts`."""

    counts: Int64[Tensor, "n classes counts"]  # chunks of a class with so many nonzeros
    values: Int64[Tensor, "n pages 256"]  # symbols of the nonzeros
    nonzeros: Int64[Tensor, "n segments"]

    @classmethod
    def cat(cls, parts: list[Statistics]) -> Statistics:
        """One after another."""
        return cls(
            torch.cat([part.counts for part in parts]),
            torch.cat([part.values for part in parts]),
            torch.cat([part.nonzeros for part in parts]),
        )


def chunk_statistics(levels: Int[Tensor, "n count"]) -> Statistics:
    """Of the levels of n clients, a row each: int8, int16, int32, or int64 on a CPU."""
    rows, count = levels.shape
    counts = torch.empty(rows, num_chunks(count), dtype=torch.uint8, device=levels.device)
    pages = num_pages(count)
    values = torch.zeros(rows, pages, SYMBOLS, dtype=torch.int32, device=levels.device)
    if levels.is_cuda:
        from fetchsgd.wire.chunk_cuda import count_rows

        count_rows(levels, counts, values)
    else:
        arrays = [part.numpy() for part in (levels, counts, values)]
        tasks = zip(*arrays, strict=True)
        list(run_in_order(lambda row: count_levels(*row), tasks, levels.numel()))
    return from_chunks(counts, values.long())


def from_chunks(
    chunks: UInt8[Tensor, "n chunks"], values: Int64[Tensor, "n pages 256"]
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
    return Statistics(counts.long(), values, nonzeros.long())
