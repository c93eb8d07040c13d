"""Counting over chunks on a GPU: which program does what."""

from __future__ import annotations

from jaxtyping import Int, Int32, Int64, UInt8
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.wire import chunk_programs
from fetchsgd.wire.chunk_loops import CLASSES, DIRECT, PAGE
from fetchsgd.wire.chunks import COUNTS, SPAN, num_chunks

TILE = 16  # chunks of a program; pages have whole ones
SEGMENT_TILE = 512


def count_rows(
    levels: Int[Tensor, "n count"],
    chunks: UInt8[Tensor, "n chunks"],
    values: Int32[Tensor, "n pages 256"],
    larger: Int64[Tensor, " n"],
) -> None:
    """Nonzeros of each chunk; symbols of those of each page are added to `values`, and the sum of
    the magnitudes that have no symbol of their own to `larger`.
    """
    rows, length = chunks.shape
    if levels.stride(1) != 1:
        levels = levels.contiguous()
    if chunks.numel():
        launch(
            chunk_programs.count_chunks, (-(-length // TILE), rows),
            levels, levels.stride(0), levels.shape[1], chunks, values, larger, length,
            values.shape[1], TILE=TILE, PAGE=PAGE, DIRECT=DIRECT,
        )  # fmt: skip


def count_segments(
    chunks: UInt8[Tensor, "n chunks"],
    counts: Int32[Tensor, "n classes counts"],
    nonzeros: Int32[Tensor, "n segments"],
) -> None:
    """Chunks by class and number of nonzeros, and the nonzeros of each segment."""
    rows, length = chunks.shape
    if chunks.numel():
        launch(
            chunk_programs.count_classes, (nonzeros.shape[1], rows),
            chunks, length, counts, nonzeros, nonzeros.shape[1],
            SPAN=num_chunks(SPAN), TILE=SEGMENT_TILE, COUNTS=COUNTS, CLASSES=CLASSES,
        )  # fmt: skip
