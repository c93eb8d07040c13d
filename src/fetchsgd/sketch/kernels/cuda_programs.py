"""The Triton programs of the GPU kernels. No float is added atomically, so runs give equal bits.

A packed placement is `start << 1 | negative`, a packed block `block << 1 | negative`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_runs(
    out,
    vector,
    addresses,
    stride,
    starts,
    blocks,
    list_length,
    bounds,
    dim,
    cols,
    tiles,
    splits,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
    IN_PIECES: tl.constexpr,
):
    """Sum the runs that cover one tile of cells, or one split's share of them, in list order."""
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(2).to(tl.int64)
    cells = tile * TILE + tl.arange(0, TILE)
    lanes = tl.arange(0, RUNS)
    first = tl.load(bounds + (row * tiles + tile) * 2)
    last = tl.load(bounds + (row * tiles + tile) * 2 + 1)
    share = tl.cdiv(last - first, splits)
    begin = first + share * split
    end = tl.minimum(begin + share, last)
    starts += row * list_length
    blocks += row * list_length
    total = tl.zeros((TILE,), tl.float32)
    for at in range(begin, end, RUNS):
        listed = at + lanes
        start = tl.load(starts + listed, mask=listed < end, other=2147483647)
        packed = tl.load(blocks + listed, mask=listed < end, other=0)
        sign = (1 - 2 * (packed & 1)).to(tl.float32)
        block = (packed >> 1).to(tl.int64)
        length = tl.minimum(dim - block * BLOCK, BLOCK).to(tl.int32)
        within = cells[None, :] - start[:, None]
        covers = (within >= 0) & (within < length[:, None])
        if IN_PIECES:
            base = tl.load(addresses + n * stride + block).to(vector.dtype)
        else:
            base = vector + (n * stride + block * BLOCK)
        values = tl.load(base[:, None] + within, mask=covers, other=0.0)
        total += tl.sum(values.to(tl.float32) * sign[:, None], axis=0)
    target = out + ((split * tl.num_programs(2) + n) * tl.num_programs(1) + row) * cols
    tl.store(target + cells, total, mask=cells < cols)


@triton.jit
def exchange(values, LOW: tl.constexpr, HIGH: tl.constexpr):
    """One step of a sorting network on a tuple of tensors."""
    small = tl.minimum(values[LOW], values[HIGH])
    large = tl.maximum(values[LOW], values[HIGH])
    moved = ()
    for i in tl.static_range(len(values)):
        if i == LOW:
            moved = moved + (small,)
        elif i == HIGH:
            moved = moved + (large,)
        else:
            moved = moved + (values[i],)
    return moved


@triton.jit
def _medians(
    block,
    within,
    inside,
    table,
    placements,
    cols,
    num_blocks,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
):
    """The estimates of coordinates given by their block and their place within it."""
    values = ()
    for row in tl.static_range(ROWS):
        above = tl.full((), row, tl.int64)  # rows times blocks may be beyond 2^31
        packed = tl.load(placements + above * num_blocks + block, mask=inside, other=0)
        cell = (packed >> 1) + within
        cell = tl.where(cell >= cols, cell - cols, cell)
        value = tl.load(table + above * cols + cell, mask=inside, other=0.0)
        values = values + (tl.where((packed & 1) == 1, -value, value),)
    for step in tl.static_range(len(NETWORK)):
        values = exchange(values, NETWORK[step][0], NETWORK[step][1])
    if LOWER == UPPER:
        return values[LOWER]
    else:
        return 0.5 * values[LOWER] + 0.5 * values[UPPER]


@triton.jit
def _span_medians(
    span,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The coordinates of one span, which of them exist, and their estimates."""
    first = span.to(tl.int64) * SPAN
    lanes = tl.arange(0, SPAN)
    inside = first + lanes < dim
    # Long division once for the span, short division for its lanes.
    from_block = (first % BLOCK).to(tl.int32) + lanes
    block = first // BLOCK + from_block // BLOCK
    values = _medians(
        block, from_block % BLOCK, inside, table, placements, cols, num_blocks,
        ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    return first + lanes, inside, values


@triton.jit
def query_entries(
    out,
    indices,
    count,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    coordinate = tl.load(indices + at, mask=inside, other=0)
    within = (coordinate % BLOCK).to(tl.int32)
    values = _medians(
        coordinate // BLOCK, within, inside, table, placements, cols, num_blocks,
        ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    tl.store(out + at, values, mask=inside)


@triton.jit
def write_estimates(
    out,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    at, inside, values = _span_medians(
        tl.program_id(0), table, placements, dim, cols, num_blocks,
        BLOCK, ROWS, NETWORK, LOWER, UPPER, SPAN,
    )  # fmt: skip
    tl.store(out + at, values, mask=inside)


@triton.jit
def append(indices, kept_values, count, capacity, level, at, inside, values):
    """Append what reaches the level, in any order, and count it even where there is no room."""
    reached = (tl.abs(values) >= level) & inside
    ones = reached.to(tl.int32)
    total = tl.sum(ones)
    if total > 0:
        place = tl.atomic_add(count, total.to(tl.int64)) + tl.cumsum(ones, 0) - 1
        tl.store(indices + place, at, mask=reached & (place < capacity))
        tl.store(kept_values + place, values, mask=reached & (place < capacity))


@triton.jit
def count_span(counts, span, spans, level, inside, values):
    """How many of fewer than 2^16 estimates lie above the level, and how many on it."""
    magnitude = tl.abs(values)
    # Both counts in one reduction: neither can reach 2^16.
    ones = (magnitude > level).to(tl.int32) + ((magnitude == level).to(tl.int32) << 16)
    both = tl.sum(tl.where(inside, ones, 0))
    tl.store(counts + span, both & 65535)
    tl.store(counts + spans + span, both >> 16)


@triton.jit
def ranks_of_span(counts, ends, span, spans, size):
    """Whether a span has something to write; the ranks at which it begins; and room for ties."""
    num_above = tl.load(counts + span)
    num_equal = tl.load(counts + spans + span)
    all_above = tl.load(ends + spans - 1)
    above_before = tl.load(ends + span) - num_above
    equal_before = tl.load(ends + spans + span) - num_equal - all_above
    room = tl.maximum(size - all_above, 0)
    needed = (num_above > 0) | ((num_equal > 0) & (equal_before < room))
    return needed, above_before, equal_before, room


@triton.jit
def write_span(
    indices, kept_values, size, above_before, equal_before, room, level, at, inside, values
):
    """Write what is above the level and the first ties, each to its rank in index order."""
    magnitude = tl.abs(values)
    is_above = (magnitude > level) & inside
    is_equal = (magnitude == level) & inside
    # As above, both running counts in one.
    ones = is_above.to(tl.int32) + (is_equal.to(tl.int32) << 16)
    before = tl.cumsum(ones, 0) - ones
    above_rank = above_before + (before & 65535)
    equal_rank = equal_before + (before >> 16)
    place = above_rank + tl.minimum(equal_rank, room)
    keep = (is_above | (is_equal & (equal_rank < room))) & (place < size)
    tl.store(indices + place, at, mask=keep)
    tl.store(kept_values + place, values, mask=keep)


@triton.jit
def append_reached(
    indices,
    kept_values,
    count,
    capacity,
    threshold,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Append what reaches the threshold, in any order, and count it even where there is no room."""
    at, inside, values = _span_medians(
        tl.program_id(0), table, placements, dim, cols, num_blocks,
        BLOCK, ROWS, NETWORK, LOWER, UPPER, SPAN,
    )  # fmt: skip
    append(indices, kept_values, count, capacity, tl.load(threshold), at, inside, values)


@triton.jit
def count_reached(
    counts,
    threshold,
    spans,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    """How many estimates of a span lie above the threshold, and how many on it."""
    span = tl.program_id(0)
    at, inside, values = _span_medians(
        span, table, placements, dim, cols, num_blocks,
        BLOCK, ROWS, NETWORK, LOWER, UPPER, SPAN,
    )  # fmt: skip
    tl.static_assert(SPAN < 65536)
    count_span(counts, span, spans, tl.load(threshold), inside, values)


@triton.jit
def write_reached(
    indices,
    kept_values,
    size,
    counts,
    ends,
    threshold,
    spans,
    table,
    placements,
    dim,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NETWORK: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Write what is above the threshold and the first ties, each to its rank in index order."""
    span = tl.program_id(0)
    needed, above_before, equal_before, room = ranks_of_span(counts, ends, span, spans, size)
    if needed:
        at, inside, values = _span_medians(
            span, table, placements, dim, cols, num_blocks,
            BLOCK, ROWS, NETWORK, LOWER, UPPER, SPAN,
        )  # fmt: skip
        write_span(
            indices, kept_values, size, above_before, equal_before, room,
            tl.load(threshold), at, inside, values,
        )  # fmt: skip


@triton.jit
def sum_neighbours(out, cells, values, count, SPAN: tl.constexpr):
    """out[cell] = sum of the values whose cells are equal; equal cells stand side by side."""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    cell = tl.load(cells + at, mask=inside, other=-1)
    before = tl.load(cells + at - 1, mask=inside & (at > 0), other=-1)
    total = tl.load(values + at, mask=inside, other=0.0)
    leads = inside & (cell != before)
    more = leads
    step = 1
    while tl.max(more.to(tl.int32)) > 0:
        following = tl.load(cells + at + step, mask=more & (at + step < count), other=-1)
        more = more & (following == cell)
        total += tl.load(values + at + step, mask=more, other=0.0)
        step += 1
    tl.store(out + cell, total, mask=leads)


@triton.jit
def mark_cells(
    marks,
    indices,
    values,
    count,
    placements,
    cols,
    num_blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Write a one to each cell that holds a coordinate whose value is not zero."""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    coordinate = tl.load(indices + at, mask=inside, other=0)
    marked = tl.load(values + at, mask=inside, other=0.0) != 0
    within = (coordinate % BLOCK).to(tl.int32)
    for row in tl.static_range(ROWS):
        above = tl.full((), row, tl.int64)
        placed = placements + above * num_blocks
        packed = tl.load(placed + coordinate // BLOCK, mask=marked, other=0)
        cell = (packed >> 1) + within
        cell = tl.where(cell >= cols, cell - cols, cell)
        tl.store(marks + above * cols + cell, marked.to(tl.uint8), mask=marked)


@triton.jit
def copy_lanes(
    staging, table, pieces, shifts, total,
    COUNT: tl.constexpr, BYTES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Fill the staging buffer of one vector, lane by lane."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    piece = tl.load(pieces + at, mask=at < total, other=-1)
    inside = piece >= 0
    base = tl.load(table + piece, mask=inside, other=0)
    stride = tl.load(table + COUNT + piece, mask=inside, other=0)
    shift = tl.load(shifts + at, mask=inside, other=0)
    source = (base + (n * stride + shift) * BYTES).to(staging.dtype)
    tl.store(staging + n * total + at, tl.load(source, mask=inside, other=0.0), mask=inside)


@triton.jit
def find_blocks(
    found, table, pieces, shifts, slots, blocks, staging_address, staged,
    BLOCK: tl.constexpr, COUNT: tl.constexpr, BYTES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The address of each block of one vector: in its piece, or in the staging buffer."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < blocks
    piece = tl.load(pieces + at, mask=inside, other=0)
    slot = tl.load(slots + at, mask=inside, other=0)
    stride = tl.load(table + COUNT + piece)
    shift = tl.load(shifts + at, mask=inside, other=0)
    direct = tl.load(table + piece) + (n * stride + shift) * BYTES
    copied = staging_address + (n * staged + slot * BLOCK) * BYTES
    tl.store(found + n * blocks + at, tl.where(slot >= 0, copied, direct), mask=inside)
