"""The rotation in one stage: a program holds all rows of a few columns.

A thread has one column of 64 neighbouring rows and does their butterflies in its registers, hands
its numbers to other threads through shared memory, gets as many from rows that are 64 apart, and
does the rest. Nothing goes through the L2 cache in between, but pieces in memory are short: 32
bytes for eight columns, and one processor cannot hold more.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sums.kernels.cuda_programs import butterflies, taken_apart, together
from fetchsgd.sums.kernels.overlap_programs import negated, windows


@triton.jit(
    do_not_specialize=["count", "cells", "blocks", "tiles"],
    do_not_specialize_on_alignment=["out", "rows"],
)
def rotate_whole(
    out, rows, signs, count, cells, blocks, tiles, scale,
    NEAR: tl.constexpr, LOG_NEAR: tl.constexpr, FAR: tl.constexpr, LOG_FAR: tl.constexpr,
    LOG_IN: tl.constexpr, LOG_OUT: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr,
    WIDE: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """COLUMNS columns of one client; arguments are those of rotate_in_stages."""
    client = (tl.program_id(0) // tiles).to(tl.int64)
    first_column = tl.program_id(0) % tiles * COLUMNS
    rows += client * (cells if BACK else count)
    out += client * (count if BACK else cells)
    if WIDE:
        blocks = blocks.to(tl.int64)
    lane = tl.arange(0, COLUMNS)[None, None, :]
    inside = first_column + lane < blocks
    near = tl.arange(0, NEAR)[None, :, None] * blocks + first_column
    far = tl.arange(0, FAR)[None, :, None] * (NEAR * blocks) + first_column
    # The first axis is what a thread has, the second is over threads.
    if BACK:
        mine = tl.arange(0, FAR)[:, None, None] * (NEAR * blocks)
        bits = windows(signs, near + mine, (cells + 31) // 32, COLUMNS)
    else:
        mine = tl.arange(0, NEAR)[:, None, None] * blocks
        bits = windows(signs, far + mine, (cells + 31) // 32, COLUMNS)

    values = ()
    for first in tl.static_range(0, NEAR, 1 << LOG_IN):
        at = far + lane + (tl.arange(0, 1 << LOG_IN)[:, None, None] + first) * blocks
        there = inside if BACK else inside & (at < count)
        some = tl.load(rows + at, mask=there, other=0.0, eviction_policy=ONCE)
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (FAR, COLUMNS) + (2,) * LOG_IN)
        values += taken_apart(some, LOG_IN)
    if not BACK:
        values = negated(values, bits, COLUMNS, LOG_NEAR)
    values = butterflies(values, LOG_NEAR)
    whole = tl.reshape(together(values, 0, LOG_NEAR), (FAR, COLUMNS, NEAR))
    # Here numbers go from thread to thread.
    whole = tl.reshape(tl.permute(whole, (2, 1, 0)), (NEAR, COLUMNS) + (2,) * LOG_FAR)
    values = butterflies(taken_apart(whole, LOG_FAR), LOG_FAR)
    scaled = ()
    for i in tl.static_range(FAR):
        scaled += (values[i] * scale,)
    if BACK:
        scaled = negated(scaled, bits, COLUMNS, LOG_FAR)
    for first in tl.static_range(0, FAR, 1 << LOG_OUT):
        some = tl.reshape(together(scaled, first, LOG_OUT), (NEAR, COLUMNS, 1 << LOG_OUT))
        at = near + lane + (tl.arange(0, 1 << LOG_OUT)[:, None, None] + first) * (NEAR * blocks)
        there = inside & (at < count) if BACK else inside
        tl.store(out + at, tl.permute(some, (2, 0, 1)), mask=there, eviction_policy=ONCE)
