"""The Triton programs of pooling.py: each reads its inputs once and writes its outputs once.

Images are channels_last. A line is what one row of one image holds after pooling, columns times
channels. Before pooling its windows fill two rows of two lines each.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(rows, line, tiles, CHANNELS: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr):
    """A program's outputs, the corners of their windows, and which of them exist."""
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    within = (tl.program_id(0) % tiles) * SPAN + tl.arange(0, SPAN)
    inside = (row < rows)[:, None] & (within < line)[None, :]
    outputs = (row * line)[:, None] + within[None, :]
    # Every column before this one has another one beside it.
    corner = within + within // CHANNELS * CHANNELS
    return outputs, (row * line * 4)[:, None] + corner[None, :], inside


@triton.jit
def pool_windows(
    pooled, choices, x, rows, line, tiles,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """The relu of each window's maximum, and which of the four it is: the first, or a last NaN."""
    outputs, corners, inside = _tile(rows, line, tiles, CHANNELS, ROWS, SPAN)
    best = tl.load(x + corners, mask=inside, other=0.0).to(tl.float32)
    choice = tl.zeros((ROWS, SPAN), tl.int32)
    for place in tl.static_range(1, 4):
        shift = (place // 2) * 2 * line + (place % 2) * CHANNELS
        value = tl.load(x + corners + shift, mask=inside, other=0.0).to(tl.float32)
        wins = (value > best) | (value != value)
        best = tl.where(wins, value, best)
        choice = tl.where(wins, place, choice)
    # Not `best > 0`: relu lets NaN pass.
    is_cut = best <= 0
    tl.store(pooled + outputs, tl.where(is_cut, 0.0, best), mask=inside)
    tl.store(choices + outputs, tl.where(is_cut, NONE, choice).to(tl.uint8), mask=inside)


@triton.jit
def unpool_windows(
    unpooled, slopes, choices, rows, line, tiles,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Each output's slope at its place in the window, and zeros at the others."""
    outputs, corners, inside = _tile(rows, line, tiles, CHANNELS, ROWS, SPAN)
    slope = tl.load(slopes + outputs, mask=inside, other=0.0).to(tl.float32)
    choice = tl.load(choices + outputs, mask=inside, other=0).to(tl.int32)
    for place in tl.static_range(4):
        shift = (place // 2) * 2 * line + (place % 2) * CHANNELS
        part = tl.where(choice == place, slope, 0.0)
        tl.store(unpooled + corners + shift, part, mask=inside)
