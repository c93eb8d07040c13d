"""The walk's program for a GPU, compiled by Triton. Only integers are added, so bits are equal."""

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.wire.chunk_programs import level_symbol


@triton.jit
def walk_back(
    total, filled, change, chunks, indices, steps, bounds, rows, ends, count, tiles, length,
    pages, SPAN: tl.constexpr, CHUNKS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Add all updates up within one tile of coordinates, and count what that changes."""
    tile = tl.program_id(0)
    symbols = tl.arange(0, 256)
    page = tile * CHUNKS // PAGE
    own = tile * CHUNKS + tl.arange(0, CHUNKS)
    for update in range(count):
        begin = tl.load(bounds + update * (tiles + 1) + tile)
        end = tl.load(bounds + update * (tiles + 1) + tile + 1)
        row = tl.load(rows + update)
        for start in range(begin, end, SPAN):
            at = start + tl.arange(0, SPAN)
            inside = at < end
            where = tl.load(indices + at, mask=inside, other=0)
            before = tl.load(total + where, mask=inside, other=0)
            after = before + tl.load(steps + at, mask=inside, other=0)
            tl.store(total + where, after, mask=inside)
            # Lanes outside have moved from zero to zero, which cancels.
            moved = tl.histogram(level_symbol(after), 256) - tl.histogram(level_symbol(before), 256)
            tl.atomic_add(change + (row * pages + page) * 256 + symbols, moved, mask=moved != 0)
            more = (after != 0).to(tl.int32) - (before != 0).to(tl.int32)
            tl.atomic_add(filled + where // 64, more, mask=more != 0)
        # The next update, and the end of the row, read what other threads have just written.
        tl.debug_barrier()
        if tl.load(ends + update) != 0:
            now = tl.load(filled + own, mask=own < length, volatile=True)
            tl.store(chunks + row * length + own, now.to(tl.uint8), mask=own < length)
