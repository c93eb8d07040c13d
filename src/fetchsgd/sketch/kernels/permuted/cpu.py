"""The sketch by permutation on a CPU: the loops of cpu_loops.py, on as many threads as torch uses.

Each half of a cell's sum belongs to one task, which adds to it in order of coordinate, so results
do not depend on the number of threads: they are those of the reference, to the last bit. Beside the
tables there is one row for each thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.sketch.kernels.cpu import CHUNK, MAX_LANES, MAX_ROWS
from fetchsgd.sketch.kernels.cpu_selection import Found
from fetchsgd.sketch.kernels.permuted.cpu_estimates import (
    collect_estimates,
    query_entries,
    write_estimates,
)
from fetchsgd.sketch.kernels.permuted.cpu_loops import add_entries, add_vector, mark_entries
from fetchsgd.sketch.kernels.permuted.cpu_one_row import NumbaOneRow
from fetchsgd.sketch.kernels.permuted.cpu_votes import collect_voted, mark_cells
from fetchsgd.sketch.kernels.pieces import SLICE, offsets
from fetchsgd.sketch.permutation import Permutation
from fetchsgd.threads import SERIAL_WORK, run_in_order

# Cells, and bits of them.
Prepared = tuple[NDArray[np.float32], NDArray[np.unsignedinteger] | None]
# The share of coordinates up to which it is quicker to estimate those alone that rows vote for.
MOST_VOTED = 1 / 32


def numbers_of(hash: Permutation) -> NDArray[np.uint32]:
    """What the loops need to know of a permutation, in their order."""
    h = hash
    sizes = h.width, h.low_bits, h.highs, h.turns, h.flips, h.sign_mask
    return np.array([*sizes, *h.keys], dtype=np.uint32)


class PermutedNumba(NumbaOneRow):
    """The operations of the sketch on tensors in main memory."""

    samples = 1 << 15

    def __init__(self, hash: Permutation) -> None:
        self.hash = hash
        self.numbers = numbers_of(hash)
        # What counts is how many entries these have (cpu_lanes.py).
        self.lanes = (0,) * min(hash.block, MAX_LANES)
        self.rows = (0,) * hash.rows if hash.rows <= MAX_ROWS else ()

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        h = self.hash
        covered = sum(piece.shape[1] for piece in pieces)
        tables = _zeros(len(pieces[0]), h.rows, h.cols)
        rows = tables.reshape(-1, h.cols)
        # As many rows as go evenly to all threads are one task each; all threads share the others.
        work = len(rows) * covered
        shares = torch.get_num_threads() if work >= SERIAL_WORK else 1
        even = len(rows) // shares * shares
        everywhere = range(h.width)

        def fill(row: int) -> None:
            later = _zeros(h.cols)
            self._add(rows[row], pieces, first, row, 0, everywhere)
            self._add(later, pieces, first, row, 1, everywhere)
            rows[row] += later

        list(run_in_order(fill, range(even), work))
        rest = _zeros(2, len(rows) - even, h.cols)

        def fill_share(task: tuple[int, int, range]) -> None:
            row, half, columns = task
            self._add(rest[half, row - even], pieces, first, row, half, columns)

        halves = [half for half, (low, high) in enumerate(pairwise((0, h.half, h.dim)))
                  if first < high and first + covered > low]  # fmt: skip
        columns = _shares(h.width, -(-shares // max(len(halves), 1)))
        shared = product(range(even, len(rows)), halves, columns)
        list(run_in_order(fill_share, shared, work))
        rows[even:] = rest[0] + rest[1]
        return torch.from_numpy(tables)

    def add(
        self, table: Float32[Tensor, "rows cols"], piece: Float[Tensor, "1 _"], first: int
    ) -> None:
        h = self.hash
        cells, work = table.numpy(), h.rows * piece.shape[1]
        shares = torch.get_num_threads() if work >= SERIAL_WORK else 1

        def fill_share(task: tuple[int, range]) -> None:
            row, columns = task
            for half in (0, 1):
                self._add(cells[row], [piece], first, row, half, columns)

        columns = _shares(h.width, -(-shares // h.rows))
        list(run_in_order(fill_share, product(range(h.rows), columns), work))

    def _add(
        self,
        out: NDArray[np.float32],
        pieces: list[Float[Tensor, "n _"]],
        first: int,
        row: int,
        half: int,
        columns: range,
    ) -> None:
        """Add the first or the second half of a vector to some columns of a row of its table."""
        h = self.hash
        vector, row = divmod(row, h.rows)
        span = range(h.half, h.dim) if half else range(h.half)
        for begin, part in _parts(pieces, first, vector, span):
            add_vector(
                out, part, begin, self._number(row), self.numbers,
                h.block, self.lanes, columns.start, columns.stop,
            )  # fmt: skip

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        h = self.hash
        table = np.zeros((h.rows, h.cols), dtype=np.float32)
        at, entries = indices.numpy(), values.contiguous().numpy()

        def add(row: int) -> None:
            add_entries(table[row], at, entries, self._number(row), self.numbers, h.block)

        list(run_in_order(add, range(h.rows), h.rows * len(indices)))
        return torch.from_numpy(table)

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        h = self.hash
        marks = np.zeros((h.rows, h.cols), dtype=np.bool_)
        at, entries = indices.numpy(), values.contiguous().numpy()
        for row in range(h.rows):
            mark_entries(marks[row], at, entries, self._number(row), self.numbers, h.block)
        return torch.from_numpy(marks)

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        h = self.hash
        out = np.empty(len(indices), dtype=np.float32)
        at, cells = indices.numpy(), table.numpy()

        def fill(start: int) -> None:
            span = slice(start, start + CHUNK // 16)
            query_entries(
                out[span], at[span], cells, self._number(0), h.groups, self.numbers, h.block
            )

        list(run_in_order(fill, range(0, len(out), CHUNK // 16), h.rows * len(out)))
        return torch.from_numpy(out)

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        h = self.hash
        cells = table.numpy()
        span = range(h.dim) if span is None else span
        out = np.empty(len(span), dtype=np.float32)

        def fill(chunk: range) -> None:
            write_estimates(
                out[chunk.start - span.start : chunk.stop - span.start], chunk.start, cells,
                self._number(0), h.groups, self.numbers, h.block, self.lanes, self.rows,
            )  # fmt: skip

        # The loops begin where a block does.
        begin = min(-(-span.start // h.block) * h.block, span.stop)
        if begin > span.start:
            out[: begin - span.start] = self.query(table, torch.arange(span.start, begin)).numpy()
        list(run_in_order(fill, self._chunks(range(begin, span.stop)), h.rows * len(span)))
        return torch.from_numpy(out)

    def _prepared(self, cells: NDArray[np.float32], threshold: np.float32) -> Prepared:
        """The cells, and a bit for each if rows can vote by them (cpu_votes.py)."""
        h = self.hash
        # Half of a tiny number may be rounded up, so that a mean of two is larger than both.
        if h.block < 8 or threshold < 1e-37:
            return cells, None
        row_words = -(-max(h.cols, h.width * h.block) // 64)
        bits = np.empty((h.rows, row_words), dtype=np.uint64)
        marks = partial(mark_cells, threshold=threshold)
        pairs = zip(bits.view(np.uint16), cells, strict=True)
        marked = list(run_in_order(lambda pair: marks(*pair), pairs, cells.size))
        share = sum(marked) / cells.size
        if min(marked) < 0 or at_least_votes(share, h.rows) > MOST_VOTED:
            return cells, None
        return cells, bits.view(f"u{min(h.block, 64) // 8}")

    def _collect(self, found: Found, prepared: Prepared, chunk: range) -> tuple[int, int, int]:
        h, (cells, bits) = self.hash, prepared
        counts: tuple[int, int, int]
        if bits is None:
            counts = collect_estimates(
                *found, cells, chunk.start, chunk.stop,
                self._number(0), h.groups, self.numbers, h.block, self.lanes, self.rows,
            )  # fmt: skip
        else:
            counts = collect_voted(
                *found, cells, chunk.start, chunk.stop,
                self._number(0), h.groups, self.numbers, h.block, bits, votes_needed(h.rows),
            )  # fmt: skip
        return counts

    def _coordinates(self, chunk: range) -> int:
        return len(chunk)

    def _number(self, row: int) -> int:
        """The number of a row's first group."""
        return self.hash.first_group + row * self.hash.groups

    def _chunks(self, span: range | None = None) -> list[range]:
        span = range(self.hash.dim) if span is None else span
        step = max(CHUNK, self.hash.block)
        return [range(at, min(at + step, span.stop)) for at in range(span.start, span.stop, step)]


def _zeros(*shape: int) -> NDArray[np.float32]:
    """From torch, whose memory begins where a line of the cache does: so do most blocks then."""
    return torch.zeros(*shape).numpy()


def votes_needed(rows: int) -> int:
    """Of so many rows; fewer cannot bring a median to a threshold."""
    return (rows + 1) // 2


def at_least_votes(share: float, rows: int) -> float:
    """How likely that is where each row votes for this share."""
    return sum(
        math.comb(rows, n) * share**n * (1 - share) ** (rows - n)
        for n in range(votes_needed(rows), rows + 1)
    )


def _shares(width: int, count: int) -> list[range]:
    """Columns of blocks, cut into at most so many spans."""
    count = min(count, width)
    edges = [width * i // count for i in range(count + 1)]
    return [range(*pair) for pair in pairwise(edges)]


def _parts(
    pieces: list[Float[Tensor, "n _"]], start: int, vector: int, span: range
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Those coordinates of a vector that lie in a span, as float32, and where each part begins."""
    for first, piece in offsets(pieces, start):
        begin, end = max(span.start - first, 0), min(span.stop - first, piece.shape[1])
        # What has 16 bits is widened a slice at a time.
        step = SLICE if piece.dtype != torch.float32 else max(end - begin, 1)
        for at in range(begin, end, step):
            yield first + at, piece[vector, at : min(at + step, end)].float().numpy()
