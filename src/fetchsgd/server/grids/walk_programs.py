"""The walk's program for a GPU, compiled by Triton. Only integers are added, so bits are equal."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bucket(value):
    """The symbol of an int32, as in wire/integers.py; the exponent is read off the float."""
    z = ((value << 1) ^ (value >> 31)).to(tl.uint32, bitcast=True)
    # A float holds 24 bits; more must be cut, or they round up to the next power of two.
    head = tl.where(z < 16777216, z, (z >> 8) << 8)
    exponent = (head.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.maximum(exponent, 4)
    below = (z >> (exponent - 2).to(tl.uint32)) & 3
    return tl.where(z < 16, z.to(tl.int32), 4 * exponent + below.to(tl.int32))


@triton.jit
def walk_back(total, change, indices, steps, bounds, rows, count, tiles, SPAN: tl.constexpr):
    """Add all updates up within one tile of coordinates, and count what that changes."""
    tile = tl.program_id(0)
    symbols = tl.arange(0, 256)
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
            moved = tl.histogram(bucket(after), 256) - tl.histogram(bucket(before), 256)
            tl.atomic_add(change + row * 256 + symbols, moved, mask=moved != 0)
        # The next update reads what other threads have just written.
        tl.debug_barrier()
