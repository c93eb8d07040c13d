"""The walk's program for a GPU, compiled by Triton. Only integers are added, so bits are equal."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _bucket(value):
    """The symbol of an integer, as in wire/integers.py; the exponent is read off the float."""
    z = tl.where(value >= 0, 2 * value, -2 * value - 1)
    exponent = (z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.maximum(exponent, 4)
    large = 16 + 4 * (exponent - 4) + ((z >> (exponent - 2)) & 3)
    return tl.where(z < 16, z, large)


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
            moved = tl.histogram(_bucket(after), 256) - tl.histogram(_bucket(before), 256)
            tl.atomic_add(change + row * 256 + symbols, moved, mask=moved != 0)
        # The next update reads what other threads have just written.
        tl.debug_barrier()
