"""Sizes of sparse integers on a GPU, compiled by Triton: as chunk_sizes.py, in four launches.

A simulated round is as short as its launches are few, and in torch this takes hundreds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _total(nonzeros, row, spans):
    total = 0
    for start in range(0, spans, 64):
        at = start + tl.arange(0, 64)
        total += tl.sum(tl.load(nonzeros + row * spans + at, mask=at < spans, other=0))
    return total


@triton.jit
def _scale(total, least, low, high, more):
    """What frequencies add up to, by the number of nonzeros."""
    precision = least + more * ((total >= low).to(tl.int32) + (total >= high).to(tl.int32))
    return (1 << precision).to(tl.float32)


@triton.jit
def _table_bytes(counts, before, scale):
    """Symbols with a table, and the table; `before` has the count of the symbol before each."""
    share = counts * (scale / tl.maximum(tl.sum(counts, axis=0), 1.0))
    used = counts > 0
    raised = tl.where(used, tl.maximum(share, 1.0), 0.0)
    rare = raised == 1.0
    given = tl.sum(tl.where(rare, 1.0, 0.0), axis=0)
    left = tl.maximum(tl.sum(tl.where(rare, 0.0, raised), axis=0), 1.0)
    frequency = tl.where(rare, 1.0, raised * (scale - given) / left)
    numbers = 1 + (frequency >= 128).to(tl.int32) + (frequency >= 16384).to(tl.int32)
    runs = used & (before == 0)
    table = tl.sum(tl.where(used, numbers, 0) + 2 * runs.to(tl.int32), axis=0)
    bits = counts * tl.log2(tl.maximum(scale / tl.maximum(frequency, 1.0), 1.0))
    return table.to(tl.float32) + tl.sum(bits, axis=0) / 8


@triton.jit
def page_kinds(values, sizes, kinds, pages, least_width, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Pages of a row by their mean symbol, on a logarithmic scale."""
    row = tl.program_id(0).to(tl.int64)
    symbol = tl.arange(0, 256)
    least, most = 64.0, 0.0
    for start in range(0, pages, BLOCK):
        page = start + tl.arange(0, BLOCK)
        inside = page < pages
        at = (row * pages + page[:, None]) * 256 + symbol[None, :]
        counts = tl.load(values + at, mask=inside[:, None], other=0).to(tl.float32)
        total = tl.sum(counts, axis=1)
        mean = tl.sum(counts * symbol[None, :].to(tl.float32), axis=1) / tl.maximum(total, 1.0)
        size = tl.log2(tl.maximum(mean, 1.0))
        tl.store(sizes + row * pages + page, size, mask=inside)
        least = tl.minimum(least, tl.min(tl.where(total > 0, size, 64.0), axis=0))
        most = tl.maximum(most, tl.max(size, axis=0))
    width = tl.maximum((most - least) / KINDS, least_width)
    tl.debug_barrier()
    for start in range(0, pages, BLOCK):
        page = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + row * pages + page, mask=page < pages, other=0.0)
        kind = tl.floor((size - least) / width).to(tl.int32)
        kind = tl.minimum(tl.maximum(kind, 0), KINDS - 1)
        tl.store(kinds + row * pages + page, kind, mask=page < pages)


@triton.jit
def value_bytes(
    values, kinds, nonzeros, extra_bits, lows, highs, out, extra, pages, spans,
    least, low, high, more, TABLES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One table for the values of all pages of some kinds; the first one has every page."""
    table, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, end = tl.load(lows + table), tl.load(highs + table)
    symbol = tl.arange(0, 256)
    counts = tl.zeros([256], dtype=tl.int32)
    before = tl.zeros([256], dtype=tl.int32)
    for start in range(0, pages, BLOCK):
        page = start + tl.arange(0, BLOCK)
        kind = tl.load(kinds + row * pages + page, mask=page < pages, other=-1)
        taken = ((kind >= first) & (kind < end))[:, None]
        at = (row * pages + page[:, None]) * 256 + symbol[None, :]
        counts += tl.sum(tl.load(values + at, mask=taken, other=0), axis=0)
        before += tl.sum(tl.load(values + at - 1, mask=taken & (symbol > 0)[None, :], other=0), 0)
    scale = _scale(_total(nonzeros, row, spans), least, low, high, more)
    before = tl.where(symbol == 0, 1, before)
    size = _table_bytes(counts.to(tl.float32), before, scale)
    tl.store(out + row * TABLES + table, size)
    if table == 0:
        bits = tl.load(extra_bits + symbol).to(tl.float32)
        tl.store(extra + row, tl.sum(counts.to(tl.float32) * bits, axis=0) / 8)


@triton.jit
def group_bytes(
    counts, nonzeros, starts, ends, out, spans, least, low, high, more, least_table,
    GROUPS: tl.constexpr, CLASSES: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """One table for the counts of some classes."""
    group, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, 128)
    found = tl.zeros([128], dtype=tl.int32)
    before = tl.zeros([128], dtype=tl.int32)
    for kind in range(tl.load(starts + group), tl.load(ends + group)):
        at = counts + (row * CLASSES + kind) * COUNTS + n
        found += tl.load(at, mask=n < COUNTS, other=0)
        before += tl.load(at - 1, mask=(n < COUNTS) & (n > 0), other=0)
    before = tl.where(n == 0, 1, before)
    scale = _scale(_total(nonzeros, row, spans), least, low, high, more)
    size = _table_bytes(found.to(tl.float32), before, scale)
    tl.store(out + row * GROUPS + group, tl.maximum(size, least_table))


@triton.jit
def _number_size(value):
    return 1 + (value >= 128).to(tl.int32) + (value >= 16384).to(tl.int32)


@triton.jit
def all_bytes(
    counts, nonzeros, rank_bits, groups, shared, extra, out, pages, spans, head, lane, expansion,
    GROUPS: tl.constexpr, TABLES: tl.constexpr, CLASSES: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """Of a row: the best groups of classes, the best tables of values, and the rest."""
    row = tl.program_id(0).to(tl.int64)
    lane16 = tl.arange(0, 16)
    best = tl.where(lane16 == 0, 0.0, float("inf"))
    for b in tl.static_range(1, CLASSES + 1):
        at = groups + row * GROUPS + b * (b - 1) // 2 + lane16
        ways = best + tl.load(at, mask=lane16 < b, other=float("inf"))
        best = tl.where(lane16 == b, tl.min(ways, axis=0), best)
    tables = tl.sum(tl.where(lane16 == CLASSES, best, 0.0), axis=0)
    each = tl.load(shared + row * TABLES + lane16, mask=lane16 < TABLES, other=0.0)
    values = tl.sum(tl.where(lane16 == 0, each, 0.0), axis=0)
    if pages > 1:
        for way in tl.static_range(1, 4):
            some = (lane16 >= (1 << way) - 1) & (lane16 < (2 << way) - 1)
            values = tl.minimum(values, tl.sum(tl.where(some, each, 0.0), axis=0) + pages)
    n = tl.arange(0, 128)
    ranks = 0.0
    bits = tl.load(rank_bits + n, mask=n < COUNTS, other=0.0).to(tl.float32)
    for kind in range(CLASSES):
        at = counts + (row * CLASSES + kind) * COUNTS + n
        ranks += tl.sum(tl.load(at, mask=n < COUNTS, other=0).to(tl.float32) * bits, axis=0)
    coded = head + tables + values + ranks / 8 + tl.load(extra + row)
    total = _total(nonzeros, row, spans)
    directory = 0.0
    for start in range(0, spans, 64):
        at = start + tl.arange(0, 64)
        filled = tl.load(nonzeros + row * spans + at, mask=at < spans, other=0)
        share = filled.to(tl.float32) / tl.maximum(total, 1).to(tl.float32)
        more = tl.where(filled > 0, _number_size(coded * share).to(tl.float32) + lane, 0.0)
        each_size = tl.where(at < spans, _number_size(filled).to(tl.float32) + more, 0.0)
        directory += tl.sum(each_size, axis=0)
    size = tl.where(total > 0, coded + directory, directory)
    least = ((total + expansion - 1) // expansion).to(tl.float32)
    tl.store(out + row, tl.maximum(size, least).to(tl.float64))
