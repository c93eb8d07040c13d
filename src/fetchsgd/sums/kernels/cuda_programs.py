"""The Triton programs of the rotation: its signs, and its butterflies in two stages of one launch.

A column of 4,096 rows is long: registers and shared memory of a processor hold eight of them at
most, which are pieces of 32 bytes in memory, and nothing is loaded while they are worked on. On an
H200 that takes almost twice as long. Here a thread holds one column of 64 rows, and a program 128
columns, pieces of 512 bytes. The near stage does the butterflies of neighbouring rows and writes to
a scratch; the far stage reads rows from there that are 64 apart, and does the rest. The scratch is
small and stays in the L2 cache: memory is read once and written once. No thread hands a number to
another one of its program.

Some columns of one client are a chunk, and a chunk has as many tickets as parts of both stages.
Programs take tickets one by one: those of near(0), near(1), ... up to near(lag), then of far(0),
near(lag + 1), far(1), near(lag + 2) and so on. The scratch has room for `ring` chunks. A far part
waits until all near parts of its chunk are done, and a near part until the chunk that had its room
before has been read. Those tickets were taken long ago, so as a rule neither waits.

A program takes its next ticket, and asks whether there is room in the scratch, while what it loads
is on the way, and a far part says that it has read before it writes. So a program holds two
tickets, and works on the lower one: the lowest that is not done is worked on, and waits for lower
ones alone. Nothing waits for ever.

Signs are not read cell by cell: some threads read the bits of a row that their program needs, and
hand them to all. What is read or written once makes room in the cache for the scratch.

Triton knows no registers, only tensors. What one thread shall hold is a tuple of tensors, one for
each row; a tensor with rows in front is loaded so that a thread has all rows of its column, and is
taken apart and put together again in halves, which moves nothing. Single loads for each row
would say the same, and take long to compile. Eight rows at a time leave enough registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.quantisers.kernels.cuda_programs import random_words


# Otherwise Triton would compile another program for a key of 1.
@triton.jit(do_not_specialize=["stream", "key_low", "key_high"])
def fill_words(words, stream, key_low, key_high, count, RUNS: tl.constexpr):
    """The random words of some runs of a stream."""
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    at = run[:, None] * 256 + tl.arange(0, 64)[None, :]
    zeros = tl.zeros((RUNS, 64), tl.float32)
    found = random_words(run, stream.to(tl.int64), key_low, key_high, zeros)
    for w in tl.static_range(4):
        word = found[w].to(tl.int32, bitcast=True)
        tl.store(words + at + 64 * w, word, mask=at + 64 * w < count)


@triton.jit
def _taken_apart(whole, LOG_ROWS: tl.constexpr):
    """A tensor for each row; rows are the last axes, two long each."""
    values = (whole,)
    for level in tl.static_range(LOG_ROWS):
        even, odd = (), ()
        for i in tl.static_range(1 << level):
            a, b = tl.split(values[i])
            even += (a,)
            odd += (b,)
        values = even + odd
    return values


@triton.jit
def _together(values, FIRST: tl.constexpr, LOG_ROWS: tl.constexpr):
    """One tensor of some of the rows, which are its last axes."""
    some = ()
    for i in tl.static_range(1 << LOG_ROWS):
        some += (values[FIRST + i],)
    for level in tl.static_range(LOG_ROWS - 1, -1, -1):
        joined = ()
        for i in tl.static_range(1 << level):
            joined += (tl.join(some[i], some[i + (1 << level)]),)
        some = joined
    return some[0]


@triton.jit
def _butterflies(values, LOG_ROWS: tl.constexpr):
    """Of neighbouring rows first, then of rows that are 2, 4, 8, ... apart."""
    for level in tl.static_range(LOG_ROWS):
        moved = ()
        for i in tl.static_range(1 << LOG_ROWS):
            if i & (1 << level):
                moved += (values[i - (1 << level)] - values[i],)
            else:
                moved += (values[i] + values[i + (1 << level)],)
        values = moved
    return values


@triton.jit
def _wait(counter, wanted):
    """Until so many parts are done; what they wrote can then be read."""
    while tl.atomic_add(counter, 0, sem="acquire") < wanted:
        pass


@triton.jit
def _say_done(counter):
    """This part is done with the scratch, and so are all of its threads."""
    # One thread counts for all, so all must have come here.
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def _windows(signs, at, words, COLUMNS: tl.constexpr):
    """The bits of some rows from their cells `at` on, (rows, groups, 1): 32 or fewer to a word."""
    runs: tl.constexpr = COLUMNS // 32 if COLUMNS > 32 else 1
    at = at + tl.arange(0, runs)[None, None, :] * 32
    word, shift = at >> 5, (at & 31).to(tl.uint32)
    low = tl.load(signs + word, mask=word < words, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(signs + word + 1, mask=word + 1 < words, other=0).to(tl.uint32, bitcast=True)
    return (low >> shift) | ((high << 1) << (31 - shift))


@triton.jit
def _negated(values, bits, COLUMNS: tl.constexpr, LOG_ROWS: tl.constexpr):
    """Rows, negated where their windows say so: a thread gets all windows of its column."""
    groups: tl.constexpr = bits.shape[1]
    runs: tl.constexpr = bits.shape[2]
    wide = tl.broadcast_to(bits[:, :, :, None], (1 << LOG_ROWS, groups, runs, COLUMNS // runs))
    wide = tl.permute(tl.reshape(wide, (1 << LOG_ROWS, groups, COLUMNS)), (1, 2, 0))
    apart = _taken_apart(tl.reshape(wide, (groups, COLUMNS) + (2,) * LOG_ROWS), LOG_ROWS)
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
    GROUPS: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Butterflies of GROUPS groups of NEAR neighbouring rows; gives the next ticket."""
    lane = tl.arange(0, COLUMNS)[None, None, :]
    inside = first_column + lane < blocks
    group = NEAR * (part * GROUPS + tl.arange(0, GROUPS))[None, :, None]
    start = group * blocks + first_column
    if not BACK:
        row = tl.arange(0, NEAR)[:, None, None] * blocks
        bits = _windows(signs, start + row, (cells + 31) // 32, COLUMNS)
    values = ()
    for first in tl.static_range(0, NEAR, 1 << LOG_SOME):
        at = start + lane + (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * blocks
        there = inside if BACK else inside & (at < count)
        some = tl.load(rows + at, mask=there, other=0.0, eviction_policy="evict_first")
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (GROUPS, COLUMNS) + (2,) * LOG_SOME)
        values += _taken_apart(some, LOG_SOME)
    ticket = tl.atomic_add(tickets, 1, sem="relaxed")
    if wanted > 0:
        _wait(room_free, wanted)
    if not BACK:
        values = _negated(values, bits, COLUMNS, LOG_NEAR)
    values = _butterflies(values, LOG_NEAR)
    scratch += group * COLUMNS + lane
    for first in tl.static_range(0, NEAR, 1 << LOG_SOME):
        some = tl.reshape(_together(values, first, LOG_SOME), (GROUPS, COLUMNS, 1 << LOG_SOME))
        below = (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * COLUMNS
        tl.store(scratch + below, tl.permute(some, (2, 0, 1)), cache_modifier=".cg")
    _say_done(done)
    return ticket


@triton.jit
def _far_part(
    out, scratch, signs, tickets, written, wanted, done, part, first_column, count, cells, blocks,
    scale,
    NEAR: tl.constexpr, FAR: tl.constexpr, LOG_FAR: tl.constexpr, LOG_SOME: tl.constexpr,
    GROUPS: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Butterflies of GROUPS times FAR rows that are NEAR apart; gives the next ticket."""
    lane = tl.arange(0, COLUMNS)[None, None, :]
    inside = first_column + lane < blocks
    near = (part * GROUPS + tl.arange(0, GROUPS))[None, :, None]
    start = near * blocks + first_column
    if BACK:
        row = tl.arange(0, FAR)[:, None, None] * (NEAR * blocks)
        bits = _windows(signs, start + row, (cells + 31) // 32, COLUMNS)
    _wait(written, wanted)
    scratch += near * COLUMNS + lane
    values = ()
    for first in tl.static_range(0, FAR, 1 << LOG_SOME):
        below = (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * (NEAR * COLUMNS)
        # Another processor wrote this: it is in L2, and nearer caches do not know.
        some = tl.load(scratch + below, cache_modifier=".cg")
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (GROUPS, COLUMNS) + (2,) * LOG_SOME)
        values += _taken_apart(some, LOG_SOME)
    ticket = tl.atomic_add(tickets, 1, sem="relaxed")
    values = _butterflies(values, LOG_FAR)
    _say_done(done)
    scaled = ()
    for i in tl.static_range(FAR):
        scaled += (values[i] * scale,)
    if BACK:
        scaled = _negated(scaled, bits, COLUMNS, LOG_FAR)
    for first in tl.static_range(0, FAR, 1 << LOG_SOME):
        some = tl.reshape(_together(scaled, first, LOG_SOME), (GROUPS, COLUMNS, 1 << LOG_SOME))
        at = start + lane + (tl.arange(0, 1 << LOG_SOME)[:, None, None] + first) * (NEAR * blocks)
        there = inside & (at < count) if BACK else inside
        tl.store(out + at, tl.permute(some, (2, 0, 1)), mask=there, eviction_policy="evict_first")
    return ticket


# Told that places are multiples of 16, Triton would load four columns at once in each thread, and
# hand numbers from thread to thread.
@triton.jit(
    do_not_specialize=["count", "cells", "blocks", "tiles", "chunks", "lag", "ring"],
    do_not_specialize_on_alignment=["out", "rows", "scratch"],
)
def rotate_chunks(
    out, rows, signs, scratch, done, count, cells, blocks, tiles, chunks, lag, ring, scale,
    NEAR: tl.constexpr, LOG_NEAR: tl.constexpr, FAR: tl.constexpr, LOG_FAR: tl.constexpr,
    LOG_IN: tl.constexpr, LOG_OUT: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    BACK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """All chunks of all clients, `tiles` for each.

    done: the next ticket, then near parts that are done, for each chunk, then far parts that have
    read; zeros at first. count, cells: numbers of a client, without and with what fills them up.
    BACK: from cells to numbers, with signs behind the butterflies. WIDE: whether places need 64
    bits. LOG_IN, LOG_OUT: 2^these rows are loaded and stored at once in the near and in the far
    stage.
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
                NEAR, LOG_NEAR, LOG_IN, GROUPS, COLUMNS, BACK,
            )  # fmt: skip
        elif not is_near and chunk >= 0:
            ticket = _far_part(
                out + client * (count if BACK else cells), room, signs, done,
                near_done + chunk, near_parts, far_done + chunk,
                part - near_parts, first_column, count, cells, blocks, scale,
                NEAR, FAR, LOG_FAR, LOG_OUT, GROUPS, COLUMNS, BACK,
            )  # fmt: skip
        else:
            ticket = tl.atomic_add(done, 1, sem="relaxed")
