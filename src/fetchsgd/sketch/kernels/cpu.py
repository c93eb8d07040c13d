"""The sketch on a CPU: the loops of cpu_loops.py, on as many threads as torch uses.

Results do not depend on the number of threads. Each cell of a table belongs to one task, which
adds to it in order of coordinate: the sum is the one that a sequential float32 loop gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels.cpu_estimates import (
    collect_estimates,
    query_entries,
    write_estimates,
)
from fetchsgd.sketch.kernels.cpu_loops import add_entries, add_runs
from fetchsgd.sketch.kernels.cpu_selection import Found, NumbaSelection
from fetchsgd.sketch.kernels.pieces import offsets, slices
from fetchsgd.sketch.kernels.reference import touched
from fetchsgd.threads import SERIAL_WORK, run_in_order

# Coordinates that one task walks over.
CHUNK = 1 << 18
# Floats that move at once: the largest power of two up to this that divides the block.
MAX_LANES = 16
# A median is compiled for each number of rows up to this; beyond, it would take too long.
MAX_ROWS = 64

Part = tuple[int, NDArray[np.float32]]


class NumbaKernels(NumbaSelection):
    """The operations of the sketch on tensors in main memory."""

    hash: BlockHash
    samples = 1 << 17

    def __init__(self, hash: BlockHash) -> None:
        self.hash = hash
        # What counts is how many entries these have (cpu_lanes.py).
        self.lanes = (0,) * math.gcd(hash.block, MAX_LANES)
        self.rows = (0,) * hash.rows if hash.rows <= MAX_ROWS else ()

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        h = self.hash
        tables = np.zeros((pieces[0].shape[0], h.rows, h.cols), dtype=np.float32)
        self._add(tables, pieces, first)
        return torch.from_numpy(tables)

    def add(
        self, table: Float32[Tensor, "rows cols"], piece: Float[Tensor, "1 _"], first: int
    ) -> None:
        self._add(table.numpy()[None], [piece], first)

    def _add(
        self, tables: NDArray[np.float32], pieces: list[Float[Tensor, "n _"]], first: int
    ) -> None:
        h = self.hash
        work = len(tables) * h.rows * sum(piece.shape[1] for piece in pieces)
        edges = self._column_edges(len(tables) * h.rows, work)
        spans = list(product(range(len(tables)), range(h.rows), range(len(edges) - 1)))
        for parts in _as_float32(pieces, first):

            def add(span: tuple[int, int, int], parts: list[Part] = parts) -> None:
                vector, row, edge = span
                for begin, part in parts:
                    add_runs(
                        tables[vector, row],
                        part[vector],
                        begin,
                        h.placements[row],
                        h.block,
                        self.lanes,
                        edges[edge],
                        edges[edge + 1],
                    )

            list(run_in_order(add, spans, work))

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        h = self.hash
        table = np.zeros((h.rows, h.cols), dtype=np.float32)
        at, entries = indices.numpy(), values.contiguous().numpy()

        def add(row: int) -> None:
            add_entries(table[row], at, entries, h.placements[row], h.block)

        list(run_in_order(add, range(h.rows), h.rows * len(indices)))
        return torch.from_numpy(table)

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        h = self.hash
        return touched(torch.from_numpy(h.placements), indices, values, h.block, h.cols)

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        h = self.hash
        out = np.empty(len(indices), dtype=np.float32)
        at = indices.numpy()
        cells = table.numpy()

        def fill(start: int) -> None:
            span = slice(start, start + CHUNK // 16)
            query_entries(out[span], at[span], cells, h.placements, h.block, self.rows)

        list(run_in_order(fill, range(0, len(out), CHUNK // 16), h.rows * len(out)))
        return torch.from_numpy(out)

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        h = self.hash
        if span is not None:
            return self.query(table, torch.arange(span.start, span.stop))
        cells = table.numpy()
        out = np.empty(h.dim, dtype=np.float32)

        def fill(blocks: range) -> None:
            write_estimates(
                out,
                cells,
                h.placements,
                h.block,
                self.lanes,
                self.rows,
                blocks.start,
                blocks.stop,
            )

        list(run_in_order(fill, self._chunks(), h.rows * h.dim))
        return torch.from_numpy(out)

    def _collect(
        self, found: Found, prepared: NDArray[np.float32], chunk: range
    ) -> tuple[int, int, int]:
        h = self.hash
        counts: tuple[int, int, int] = collect_estimates(
            *found, prepared, h.dim, h.placements, h.block, self.lanes, self.rows,
            chunk.start, chunk.stop,
        )  # fmt: skip
        return counts

    def _coordinates(self, chunk: range) -> int:
        return len(chunk) * self.hash.block

    def _column_edges(self, tables: int, work: int) -> list[int]:
        """Cut a row's columns into spans only where there are fewer rows than threads."""
        spans = 1 if work < SERIAL_WORK else -(-torch.get_num_threads() // max(tables, 1))
        spans = min(spans, self.hash.cols)
        return [self.hash.cols * i // spans for i in range(spans + 1)]

    def _chunks(self) -> list[range]:
        step = max(CHUNK // self.hash.block, 1)
        total = self.hash.num_blocks
        return [range(at, min(at + step, total)) for at in range(0, total, step)]


def _as_float32(pieces: list[Float[Tensor, "n _"]], first: int) -> Iterator[list[Part]]:
    """All pieces as they are, or, where they are 16-bit, one widened slice after another."""
    if pieces[0].dtype == torch.float32:
        yield [(begin, piece.numpy()) for begin, piece in offsets(pieces, first)]
    else:
        for begin, part in slices(pieces, first):
            yield [(begin, part.float().numpy())]
