"""The two stages of cuda_programs.py, with less to wait for.

A program takes its next ticket, and asks whether there is room in the scratch, while what it loads
is on the way. A far part says that it has read before it writes. And signs are not read cell by
cell: some threads read the bits of a row that their program needs, and hand them to all.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sums.kernels.cuda_programs import butterflies, say_done, taken_apart, together, wait


@triton.jit
def windows(signs, at, words, COLUMNS: tl.constexpr):
    """The bits of some rows from their cells `at` on, (rows, groups, 1): 32 or fewer to a word."""
    runs: tl.constexpr = COLUMNS // 32 if COLUMNS > 32 else 1
    at = at + tl.arange(0, runs)[None, None, :] * 32
    word, shift = at >> 5, (at & 31).to(tl.uint32)
    low = tl.load(signs + word, mask=word < words, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(signs + word + 1, mask=word + 1 < words, other=0).to(tl.uint32, bitcast=True)
    return (low >> shift) | ((high << 1) << (31 - shift))


@triton.jit
def negated(values, bits, COLUMNS: tl.constexpr, LOG_ROWS: tl.constexpr):
    """Rows, negated where their windows say so: a thread gets all windows of its column."""
    groups: tl.constexpr = bits.shape[1]
    runs: tl.constexpr = bits.shape[2]
    wide = tl.broadcast_to(bits[:, :, :, None], (1 << LOG_ROWS, groups, runs, COLUMNS // runs))
    wide = tl.permute(tl.reshape(wide, (1 << LOG_ROWS, groups, COLUMNS)), (1, 2, 0))
    apart = taken_apart(tl.reshape(wide, (groups, COLUMNS) + (2,) * LOG_ROWS), LOG_ROWS)
    left = (31 - tl.arange(0, COLUMNS) % 32).to(tl.uint32)[None, :]
    found = ()
    for i in tl.static_range(1 << LOG_ROWS):
        flipped = values[i].to(tl.uint32, bitcast=True) ^ ((apart[i] << left) & 0x80000000)
        found += (flipped.to(tl.float32, bitcast=True),)
    return found


@triton.jit
def _near_part(
    scratch, rows, signs, tickets, room_free, wanted, done, part, first_column, count, cells,
    blocks,
    NEAR: tl.constexpr, LOG_NEAR: tl.constexpr, LOG_SOME: tl.constexpr,
    GROUPS: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr, ONCE: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Butterflies of GROUPS groups of NEAR neighbouring rows; gives the next ticket."""
    lane = tl.arange(0, COLUMNS)[None, None, :]
    inside = first_column + lane < blocks
    group = NEAR * (part * GROUPS + tl.arange(0, GROUPS))[None, :, None]
    start = group * blocks + first_column
    if not BACK:
        row = tl.arange(0, NEAR)[:, None, None] * blocks
        bits = windows(signs, start + row, (cells + 31) // 32, COLUMNS)
    values = ()
    for first in tl.static_range(0, NEAR, 1 << LOG_SOME):
        at = start + lane + (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * blocks
        there = inside if BACK else inside & (at < count)
        some = tl.load(rows + at, mask=there, other=0.0, eviction_policy=ONCE)
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (GROUPS, COLUMNS) + (2,) * LOG_SOME)
        values += taken_apart(some, LOG_SOME)
    ticket = tl.atomic_add(tickets, 1, sem="relaxed")
    if wanted > 0:
        wait(room_free, wanted)
    if not BACK:
        values = negated(values, bits, COLUMNS, LOG_NEAR)
    values = butterflies(values, LOG_NEAR)
    scratch += group * COLUMNS + lane
    for first in tl.static_range(0, NEAR, 1 << LOG_SOME):
        some = tl.reshape(together(values, first, LOG_SOME), (GROUPS, COLUMNS, 1 << LOG_SOME))
        below = (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * COLUMNS
        some = tl.permute(some, (2, 0, 1))
        if KEEP:
            tl.store(scratch + below, some, eviction_policy="evict_last")
        else:
            tl.store(scratch + below, some, cache_modifier=".cg")
    say_done(done)
    return ticket


@triton.jit
def _far_part(
    out, scratch, signs, tickets, written, wanted, done, part, first_column, count, cells, blocks,
    scale,
    NEAR: tl.constexpr, FAR: tl.constexpr, LOG_FAR: tl.constexpr, LOG_SOME: tl.constexpr,
    GROUPS: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """Butterflies of GROUPS times FAR rows that are NEAR apart; gives the next ticket."""
    lane = tl.arange(0, COLUMNS)[None, None, :]
    inside = first_column + lane < blocks
    near = (part * GROUPS + tl.arange(0, GROUPS))[None, :, None]
    start = near * blocks + first_column
    if BACK:
        row = tl.arange(0, FAR)[:, None, None] * (NEAR * blocks)
        bits = windows(signs, start + row, (cells + 31) // 32, COLUMNS)
    wait(written, wanted)
    scratch += near * COLUMNS + lane
    values = ()
    for first in tl.static_range(0, FAR, 1 << LOG_SOME):
        below = (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * (NEAR * COLUMNS)
        # Another processor wrote this: it is in L2, and nearer caches do not know.
        some = tl.load(scratch + below, cache_modifier=".cg")
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (GROUPS, COLUMNS) + (2,) * LOG_SOME)
        values += taken_apart(some, LOG_SOME)
    ticket = tl.atomic_add(tickets, 1, sem="relaxed")
    values = butterflies(values, LOG_FAR)
    say_done(done)
    scaled = ()
    for i in tl.static_range(FAR):
        scaled += (values[i] * scale,)
    if BACK:
        scaled = negated(scaled, bits, COLUMNS, LOG_FAR)
    for first in tl.static_range(0, FAR, 1 << LOG_SOME):
        some = tl.reshape(together(scaled, first, LOG_SOME), (GROUPS, COLUMNS, 1 << LOG_SOME))
        at = start + lane + (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * (NEAR * blocks)
        there = inside & (at < count) if BACK else inside
        tl.store(out + at, tl.permute(some, (2, 0, 1)), mask=there, eviction_policy=ONCE)
    return ticket


@triton.jit(
    do_not_specialize=["count", "cells", "blocks", "tiles", "chunks", "lag", "ring"],
    do_not_specialize_on_alignment=["out", "rows", "scratch"],
)
def rotate_overlapped(
    out, rows, signs, scratch, done, count, cells, blocks, tiles, chunks, lag, ring, scale,
    NEAR: tl.constexpr, LOG_NEAR: tl.constexpr, FAR: tl.constexpr, LOG_FAR: tl.constexpr,
    LOG_IN: tl.constexpr, LOG_OUT: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    BACK: tl.constexpr, WIDE: tl.constexpr, ONCE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """What rotate_in_stages does, with the same arguments.

    A program holds two tickets, and works on the lower one. The lowest that is not done is worked
    on, and waits for lower ones alone: so nothing waits for ever.
    """
    near_parts: tl.constexpr = FAR // GROUPS
    far_parts: tl.constexpr = NEAR // GROUPS
    near_done = done + 1
    far_done = near_done + chunks
    if WIDE:
        blocks = blocks.to(tl.int64)
    last = (chunks + lag) * (near_parts + far_parts)
    ticket = tl.atomic_add(done, 1, sem="relaxed")
    while ticket < last:
        part = ticket % (near_parts + far_parts)
        is_near = part < near_parts
        chunk = ticket // (near_parts + far_parts) - (0 if is_near else lag)
        client = (chunk // tiles).to(tl.int64)
        first_column = chunk % tiles * COLUMNS
        room = scratch + chunk % ring * (NEAR * FAR * COLUMNS)
        if is_near and chunk < chunks:
            ticket = _near_part(
                room, rows + client * (cells if BACK else count), signs, done,
                far_done + chunk - ring, far_parts if chunk >= ring else 0, near_done + chunk,
                part, first_column, count, cells, blocks,
                NEAR, LOG_NEAR, LOG_IN, GROUPS, COLUMNS, BACK, ONCE, KEEP,
            )  # fmt: skip
        elif not is_near and chunk >= 0:
            ticket = _far_part(
                out + client * (count if BACK else cells), room, signs, done,
                near_done + chunk, near_parts, far_done + chunk,
                part - near_parts, first_column, count, cells, blocks, scale,
                NEAR, FAR, LOG_FAR, LOG_OUT, GROUPS, COLUMNS, BACK, ONCE,
            )  # fmt: skip
        else:
            ticket = tl.atomic_add(done, 1, sem="relaxed")
