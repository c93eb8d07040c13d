"""Sizes of sparse integers from the counts of their chunks, and the code that is smallest.

Tables are shared where that pays: a table costs bytes, and few symbols do not earn one. Of the ways
to share (sharing.py) the best is found by looking at all of them; the writer and the prediction do
the same. On a GPU the prediction is a few programs (chunk_sizes_cuda.py).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import comb, log2

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from fetchsgd.wire import positions
from fetchsgd.wire.chunk_coder_loops import head_shift
from fetchsgd.wire.chunk_loops import CHUNK, CLASSES, DIRECT, extra_bits
from fetchsgd.wire.chunk_statistics import SYMBOLS, Statistics
from fetchsgd.wire.chunks import COUNTS, LEVELS, MOST_TABLES, ChunkCode
from fetchsgd.wire.rans import PRECISION, TOTAL, normalise
from fetchsgd.wire.segments import EXPANSION
from fetchsgd.wire.sharing import (
    GROUPS,
    HEAD_BYTES,
    LEAST_TABLE,
    LEAST_WIDTH,
    PRECISION_FROM,
    TABLES,
)
from fetchsgd.wire.sizes import (
    LANE_BYTES,
    integer_bytes,
    number_size,
    position_bytes,
    with_symbol_table,
)

# Where fewer than one coordinate in so many changes, gaps are as good, and take less memory.
SPARSEST = 4096


def sparse_bytes(found: Statistics) -> Float64[Tensor, " n"]:
    """The section of sparse integers with these statistics."""
    device = found.values.device
    if found.values.shape[1] == 0:
        return torch.zeros(len(found.values), dtype=torch.float64, device=device)
    if found.values.is_cuda:
        from fetchsgd.wire.chunk_sizes_cuda import sparse_bytes as fused

        return fused(found, rank_bits(device), extra_bits_of(device))
    ranks = found.counts.double().sum(dim=1) @ rank_bits(device) / 8
    extra = found.values.sum(dim=1).double() @ extra_bits_of(device) / 8
    groups, shared = _with_tables(found)
    tables = _best(groups) + shared.amin(dim=1)
    coded = HEAD_BYTES + tables + ranks + extra
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
    buckets = found.values.sum(dim=1).double() @ _buckets(count.device)
    everywhere = buckets.clone()
    everywhere[:, 0] = (dim - count).double()
    return {
        positions.CHUNKS: sparse_bytes(found),
        positions.JOINT: integer_bytes(everywhere),
        positions.GAPS: position_bytes(dim, count) + integer_bytes(buckets),
    }


def update_bytes(found: Statistics, dim: int) -> Float64[Tensor, " n"]:
    """The smallest of those that a writer looks at (choices.py)."""
    sizes = update_candidates(found, dim)
    count = found.nonzeros.sum(dim=1)
    smallest = torch.stack(list(sizes.values())).amin(dim=0)
    free = (SPARSEST * count >= dim) & (count < dim)
    return torch.where(free, smallest, sizes[positions.GAPS])


def best_code(found: Statistics) -> ChunkCode | None:
    """The code for one vector; none where everything is zero."""
    if not bool(found.values.any()):
        return None
    groups, shared = _with_tables(found)
    precision = int(_precision(found)[0])
    _, starts = _best_starts(groups[0].tolist())
    tables = TABLES[int(shared[0].argmin())]
    counts = found.counts[0].cpu().numpy()
    merged = [counts[a:b].sum(axis=0) for a, b in zip(starts, [*starts[1:], CLASSES], strict=True)]
    of_class = np.cumsum([int(i in starts[1:]) for i in range(CLASSES)])
    values = found.values[0, :, :LEVELS].cpu()
    kinds = _kinds(values[None].double())[0] * tables // MOST_TABLES
    # A page without nonzeros takes any table, so the first; tables that no page has are left out.
    filled = values.any(dim=1)
    used, of_filled = torch.unique(kinds[filled], return_inverse=True)
    pages = torch.zeros_like(kinds)
    pages[filled] = of_filled
    by_table = [values[filled & (kinds == kind)].sum(dim=0).numpy() for kind in used.tolist()]
    total, factor = 1 << precision, 1 << PRECISION - precision
    of_counts, of_values = (
        np.stack([normalise(row, total) for row in rows]) * factor for rows in (merged, by_table)
    )
    return ChunkCode(precision, of_class, of_counts, of_values, pages.numpy().astype(np.uint8))


def _precision(found: Statistics) -> Int64[Tensor, " n"]:
    least, bounds, more = PRECISION_FROM
    total = found.nonzeros.sum(dim=1)
    reached = torch.stack([total >= bound for bound in bounds]).sum(dim=0)
    return least + more * reached


def _with_tables(
    found: Statistics,
) -> tuple[Float64[Tensor, "n groups"], Float64[Tensor, "n ways"]]:
    """Bytes with tables: counts of each group, and all values in each way to share."""
    counts, values = _trimmed(found.counts).double(), _trimmed(found.values).double()
    total = (2.0 ** _precision(found))[:, None, None]

    def size(symbols: Float64[Tensor, "n tables symbols"]) -> Float64[Tensor, "n tables"]:
        table, bits = with_symbol_table(symbols, total)
        return table + bits / 8

    starts, ends = _edges(counts.device)
    sums = torch.nn.functional.pad(counts.cumsum(dim=1), (0, 0, 1, 0))
    groups = size(sums[:, ends] - sums[:, starts]).clamp(min=LEAST_TABLE)
    rows, pages, _ = values.shape
    if pages == 1:
        return groups, size(values)
    kinds = _by_kind(values)
    ways = [kinds.view(rows, n, MOST_TABLES // n, -1).sum(dim=2) for n in TABLES]
    sizes = torch.split(size(torch.cat(ways, dim=1)), list(TABLES), dim=1)
    # Where there are several, each page says which it has.
    said = [pages if n > 1 else 0 for n in TABLES]
    shared = [part.sum(dim=1) + more for part, more in zip(sizes, said, strict=True)]
    return groups, torch.stack(shared, dim=1)


def _trimmed(counts: Int32[Tensor, "n rows symbols"]) -> Int32[Tensor, "n rows used"]:
    """Without the symbols at the end that nobody has."""
    last = counts.flatten(0, 1).any(dim=0).nonzero()
    return counts[:, :, : int(last[-1]) + 1 if len(last) else 1]


def _by_kind(values: Float64[Tensor, "n pages symbols"]) -> Float64[Tensor, "n kinds symbols"]:
    found = values.new_zeros(len(values), MOST_TABLES, values.shape[2])
    kinds = _kinds(values)[:, :, None].expand(values.shape)
    return found.scatter_add_(1, kinds, values)


def _kinds(values: Float64[Tensor, "n pages symbols"]) -> Int64[Tensor, "n pages"]:
    """Pages by their mean symbol on a logarithmic scale, from the least to the largest."""
    symbols = torch.arange(values.shape[2], dtype=torch.float64, device=values.device)
    total = values.sum(dim=2)
    size = torch.log2((values @ symbols / total.clamp(min=1)).clamp(min=1))
    none = total == 0
    least = size.masked_fill(none, 64.0).amin(dim=1, keepdim=True)
    most = size.amax(dim=1, keepdim=True)
    width = ((most - least) / MOST_TABLES).clamp(min=LEAST_WIDTH)
    return ((size - least) / width).long().clamp(0, MOST_TABLES - 1)


def _best(costs: Float64[Tensor, "n groups"]) -> Float64[Tensor, " n"]:
    """The least sum of costs of groups that cover all classes."""
    best = torch.zeros_like(costs[..., :1])
    for b in range(1, CLASSES + 1):
        last = GROUPS.index((0, b))
        least = (best + costs[..., last : last + b]).amin(dim=-1, keepdim=True)
        best = torch.cat([best, least], dim=-1)
    return best[..., -1]


def _best_starts(costs: list[float]) -> tuple[float, list[int]]:
    """The same for one vector, with the first classes of the groups."""
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for b in range(1, CLASSES + 1):
        ways = [(best[a][0] + costs[GROUPS.index((a, b))], [*best[a][1], a]) for a in range(b)]
        best.append(min(ways))
    return best[-1]


@lru_cache
def _edges(device: torch.device) -> tuple[Tensor, Tensor]:
    """First class of each group, and one past its last."""
    starts, ends = torch.tensor(GROUPS).T.contiguous().to(device)
    return starts, ends


@lru_cache
def rank_bits(device: torch.device) -> Float64[Tensor, " counts"]:
    """Bits of the rank of a set of each size, in the mean."""
    bits = []
    for n in range(COUNTS):
        sets = comb(CHUNK, n)
        shift = int(head_shift(sets))
        heads = (sets - 1 >> shift) + 1
        starts = [(head << PRECISION) // heads for head in range(heads + 1)]
        each = [log2(TOTAL / (b - a)) for a, b in pairwise(starts)]
        bits.append(sum(each) / heads + shift if heads > 1 else 0.0)
    return torch.tensor(bits, dtype=torch.float64).to(device)


@lru_cache
def extra_bits_of(device: torch.device) -> Float64[Tensor, " symbols"]:
    bits = [int(extra_bits(symbol)) for symbol in range(LEVELS)]
    return torch.tensor(bits + [0] * (SYMBOLS - LEVELS), dtype=torch.float64).to(device)


@lru_cache
def _buckets(device: torch.device) -> Float64[Tensor, "symbols buckets"]:
    """How symbols of values become those of integers.py, which halve the larger ones once more."""
    shares = torch.zeros(SYMBOLS, SYMBOLS, dtype=torch.float64)
    for symbol in range(LEVELS):
        top = symbol.bit_length() - 1 if symbol < DIRECT else (symbol - DIRECT) // 2 + 6
        if symbol < 16:
            shares[symbol, symbol] = 1
        elif symbol < DIRECT:
            shares[symbol, 4 * top + (symbol >> top - 2 & 3)] = 1
        else:
            first = 4 * top + symbol % 2 * 2
            shares[symbol, first : first + 2] = 0.5
    return shares.to(device)
