"""Sizes of sparse integers from the counts of their chunks, and the code that is smallest.

Classes of chunks share tables where that pays: a table costs bytes, and few chunks do not earn one.
Groups are neighbours, so the best ones are found by looking at all 45 that there are. The writer
and the prediction do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import comb, log2

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fetchsgd.wire import positions
from fetchsgd.wire.chunk_loops import CHUNK, CLASSES, head_shift
from fetchsgd.wire.chunk_statistics import Statistics
from fetchsgd.wire.chunks import COUNTS, ChunkCode
from fetchsgd.wire.rans import PRECISION, TOTAL, normalise
from fetchsgd.wire.segments import EXPANSION
from fetchsgd.wire.sizes import (
    LANE_BYTES,
    extra_bits,
    integer_bytes,
    number_size,
    position_bytes,
    with_symbol_table,
)

# Where fewer than one coordinate in so many changes, gaps are as good, and take less memory.
SPARSEST = 4096
GROUPS = [(a, b) for b in range(1, CLASSES + 1) for a in range(b)]
# Fine tables pay where there is much to code, short ones where there is little.
PRECISIONS = (8, 11, 14)
# Precision and groups.
HEAD_BYTES = 2
# A table that has nothing to say: one frequency.
LEAST_TABLE = 2.0


def sparse_bytes(found: Statistics) -> Float64[Tensor, " n"]:
    """The section of sparse integers with these statistics."""
    values = found.values.double()
    ranks = found.counts.double().sum(dim=1) @ _rank_bits(values.device) / 8
    extra = (values * extra_bits(values.device)).sum(dim=1) / 8
    tables = [_best(costs) + value_bytes for _, costs, value_bytes in _with_tables(found)]
    coded = HEAD_BYTES + torch.stack(tables).amin(dim=0) + ranks + extra
    nonzeros = found.nonzeros.double()
    total = nonzeros.sum(dim=1)
    share = nonzeros / total.clamp(min=1)[:, None]
    of_filled = (number_size(coded[:, None] * share) + LANE_BYTES) * (nonzeros > 0)
    directory = (number_size(nonzeros) + of_filled).sum(dim=1)
    size = torch.where(total > 0, coded + directory, directory)
    return torch.maximum(size, torch.ceil(total / EXPANSION))


def update_candidates(found: Statistics, dim: int) -> dict[int, Float64[Tensor, " n"]]:
    """Positions and values of sparse updates of integers, by format: GAPS stands for all that
    leave values to a section of their own.
    """
    count = found.nonzeros.sum(dim=1)
    everywhere = found.values.clone()
    everywhere[:, 0] = dim - count
    return {
        positions.CHUNKS: sparse_bytes(found),
        positions.JOINT: integer_bytes(everywhere),
        positions.GAPS: position_bytes(dim, count) + integer_bytes(found.values),
    }


def update_bytes(found: Statistics, dim: int) -> Float64[Tensor, " n"]:
    """The smallest of those that a writer looks at (choices.py)."""
    sizes = update_candidates(found, dim)
    count = found.nonzeros.sum(dim=1)
    smallest = torch.stack(list(sizes.values())).amin(dim=0)
    free = (SPARSEST * count >= dim) & (count < dim)
    return torch.where(free, smallest, sizes[positions.GAPS])


def _with_tables(
    found: Statistics,
) -> Iterator[tuple[int, Float64[Tensor, "n groups"], Float64[Tensor, " n"]]]:
    """For each precision: bytes of the counts of each group and of values, tables included."""
    sums = torch.nn.functional.pad(found.counts.double().cumsum(dim=1), (0, 0, 1, 0))
    merged = torch.stack([sums[:, b] - sums[:, a] for a, b in GROUPS], dim=1)
    for precision in PRECISIONS:
        table, bits = with_symbol_table(merged.flatten(0, 1), 1 << precision)
        groups = (table.clamp(min=LEAST_TABLE) + bits / 8).view(len(merged), len(GROUPS))
        table, bits = with_symbol_table(found.values.double(), 1 << precision)
        yield precision, groups, table + bits / 8


def _best(costs: Float64[Tensor, "n groups"]) -> Float64[Tensor, " n"]:
    """The least sum of costs of groups that cover all classes."""
    best = [torch.zeros_like(costs[:, 0])]
    for b in range(1, CLASSES + 1):
        last = GROUPS.index((0, b))
        ways = torch.stack(best, dim=1) + costs[:, last : last + b]
        best.append(ways.amin(dim=1))
    return best[-1]


def best_code(found: Statistics) -> ChunkCode | None:
    """The code for one vector; none where everything is zero."""
    values, counts = found.values[0].cpu().numpy(), found.counts[0].cpu().numpy()
    if not values.any():
        return None
    ways = []
    for precision, costs, value_bytes in _with_tables(found):
        size, starts = _best_starts(costs[0].tolist())
        ways.append((size + float(value_bytes[0]), precision, starts))
    _, precision, starts = min(ways)
    ends = [*starts[1:], CLASSES]
    total, factor = 1 << precision, 1 << PRECISION - precision
    merged = [counts[a:b].sum(axis=0) for a, b in zip(starts, ends, strict=True)]
    tables = np.stack([normalise(row, total) for row in merged])
    groups = np.cumsum([int(i in starts[1:]) for i in range(CLASSES)])
    return ChunkCode(precision, groups, tables * factor, normalise(values, total) * factor)


def _best_starts(costs: list[float]) -> tuple[float, list[int]]:
    """The least sum of costs, as above, and the first classes of the groups that have it."""
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for b in range(1, CLASSES + 1):
        ways = [(best[a][0] + costs[GROUPS.index((a, b))], [*best[a][1], a]) for a in range(b)]
        best.append(min(ways))
    return best[-1]


@lru_cache
def _rank_bits(device: torch.device) -> Float64[Tensor, " counts"]:
    """Bits of the rank of a set of each size, in the mean."""
    bits = []
    for n in range(COUNTS):
        sets = comb(CHUNK, n)
        shift = int(head_shift(sets))
        heads = (sets - 1 >> shift) + 1
        starts = [(head << 14) // heads for head in range(heads + 1)]
        each = [log2(TOTAL / (b - a)) for a, b in pairwise(starts)]
        bits.append(sum(each) / heads + shift if heads > 1 else 0.0)
    return torch.tensor(bits, dtype=torch.float64).to(device)
