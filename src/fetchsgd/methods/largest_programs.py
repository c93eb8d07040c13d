"""The Triton programs of largest_cuda.py. Only integers are added atomically: runs give equal bits.

A key is a float's bits without the sign, or LAST, the least NaN, for all NaN. A row's window is
(low, top, wanted, equal): the least and the greatest key that its k-th largest may have, how many
of the elements with such keys are among the k largest, and how many there are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(vectors, row, at, dim, LAST: tl.constexpr):
    """A row's floats as bits, and their keys; past the end, a key below all others."""
    bits = tl.load(vectors + row * dim.to(tl.int64) + at, mask=at < dim, other=0)
    key = tl.minimum(bits & 0x7FFFFFFF, LAST)
    return bits, tl.where(at < dim, key, -1)


@triton.jit
def _shift(low, top, BINS: tl.constexpr):
    """The least by which to shift a distance from the top so that it is one of BINS - 1."""
    too_far = ((top - low) >> tl.arange(0, 32)) >= BINS - 1
    return tl.sum(too_far.to(tl.int32), axis=0)


@triton.jit
def _my_tile(tiles, SPANS: tl.constexpr):
    """The row of a program that takes SPANS spans of one, and the first of them."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    return row, (tl.program_id(0) % tiles) * SPANS


# Were dim known to be a multiple of 16, threads would read four floats at once, and then pass all
# addresses of bins on through shared memory.
@triton.jit(do_not_specialize=["dim"])
def count_window(
    counts, windows, vectors, dim, tiles,
    LAST: tl.constexpr, BINS: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Count a tile's keys into its row's bins: 0 is above the window, and then from the top down.

    A key that very many share is mostly an edge of the window: those are counted before they are
    added, so that not all threads wait for one bin.
    """
    row, first = _my_tile(tiles, SPANS)
    low = tl.load(windows + row * 4)
    top = tl.load(windows + row * 4 + 1)
    if low < top:
        shift = _shift(low, top, BINS)
        bins = counts + row * BINS
        seen = tl.zeros((SPAN,), tl.int32)  # three counts, a byte each, to save registers
        for i in range(SPANS):
            at = (first + i) * SPAN + tl.arange(0, SPAN)
            _, key = _read(vectors, row, at, dim, LAST)
            at_edge = tl.where(key == top, 1 << 8, tl.where(key == low, 1 << 16, 0))
            seen += tl.where(key > top, 1, at_edge)
            inside = (key > low) & (key < top)
            place = tl.where(inside, 1 + ((top - key) >> shift), 0)
            tl.atomic_add(bins + place, 1, mask=inside, sem="relaxed")
        last = 1 + ((top - low) >> shift)
        tl.atomic_add(bins, tl.sum(seen & 255, axis=0), sem="relaxed")
        tl.atomic_add(bins + 1, tl.sum((seen >> 8) & 255, axis=0), sem="relaxed")
        tl.atomic_add(bins + last, tl.sum(seen >> 16, axis=0), sem="relaxed")


@triton.jit
def narrow_window(windows, counts, dim, k, LAST: tl.constexpr, BINS: tl.constexpr):
    """Let a row's window be the bin that holds its k-th largest, or all that is below the bins.

    Once it is a single key, that is the threshold, and the window stays.
    """
    row = tl.program_id(0).to(tl.int64)
    low = tl.load(windows + row * 4)
    top = tl.load(windows + row * 4 + 1)
    if low < top:
        shift = _shift(low, top, BINS)
        bins = tl.arange(0, BINS)
        count = tl.load(counts + row * BINS + bins)
        reached = tl.cumsum(count, axis=0)
        place = tl.sum((reached < k).to(tl.int32), axis=0)
        before = tl.sum(tl.where(reached < k, count, 0), axis=0)
        found = tl.sum(tl.where(bins == place, count, 0), axis=0)
        new_top = top - ((place - 1) << shift)
        new_low = tl.maximum(low, top - (place << shift) + 1)
        is_above = place == 0
        is_below = place == BINS
        new_low = tl.where(is_above, top + 1, tl.where(is_below, 0, new_low))
        new_top = tl.where(is_above, LAST, tl.where(is_below, low - 1, new_top))
        tl.store(windows + row * 4, new_low)
        tl.store(windows + row * 4 + 1, new_top)
        tl.store(windows + row * 4 + 2, k - before)
        tl.store(windows + row * 4 + 3, tl.where(is_below, dim - before, found))


@triton.jit
def count_ties(
    ties, windows, vectors, dim, tiles, spans,
    LAST: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """How many of each span of a row equal its threshold, where not all of those are wanted."""
    row, first = _my_tile(tiles, SPANS)
    threshold = tl.load(windows + row * 4)
    wanted = tl.load(windows + row * 4 + 2)
    equal = tl.load(windows + row * 4 + 3)
    if wanted < equal:
        for i in range(SPANS):
            span = first + i
            _, key = _read(vectors, row, span * SPAN + tl.arange(0, SPAN), dim, LAST)
            count = tl.sum((key == threshold).to(tl.int32), axis=0)
            tl.store(ties + row * spans + span, count, mask=span < spans)


@triton.jit
def _chosen(key, windows, ties_before, row, span, spans):
    """Which of a span are among the largest of their row: of equals, the first ones."""
    threshold = tl.load(windows + row * 4)
    wanted = tl.load(windows + row * 4 + 2)
    equal = tl.load(windows + row * 4 + 3)
    chosen = key >= threshold
    if wanted < equal:
        is_tie = key == threshold
        rank = tl.load(ties_before + row * spans + span) + tl.cumsum(is_tie.to(tl.int32), axis=0)
        chosen = (key > threshold) | (is_tie & (rank <= wanted))
    return chosen


@triton.jit
def write_mask(
    mask, windows, ties_before, vectors, dim, tiles, spans,
    LAST: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Ones where a tile's floats are chosen, and zeros elsewhere."""
    row, first = _my_tile(tiles, SPANS)
    last = tl.minimum(first + SPANS, spans)
    for span in range(first, last):
        at = span * SPAN + tl.arange(0, SPAN)
        _, key = _read(vectors, row, at, dim, LAST)
        chosen = _chosen(key, windows, ties_before, row, span, spans)
        tl.store(mask + row * dim + at, chosen.to(tl.uint8), mask=at < dim)


@triton.jit
def add_chosen(
    total, shares, windows, ties_before, vectors, n, dim, spans,
    LAST: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The weighted sum of what is chosen, row after row, for one span of all rows."""
    span = tl.program_id(0)
    at = span * SPAN + tl.arange(0, SPAN)
    sums = tl.zeros((SPAN,), tl.float32)
    for row in range(n):
        bits, key = _read(vectors, row, at, dim, LAST)
        chosen = _chosen(key, windows, ties_before, row, span, spans)
        value = bits.to(tl.float32, bitcast=True)
        sums += tl.where(chosen, tl.load(shares + row) * value, 0.0)
    tl.store(total + at, sums, mask=at < dim)
