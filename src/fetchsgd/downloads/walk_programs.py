"""The walk's step on a GPU, compiled by Triton."""

from __future__ import annotations

import triton
import triton.language as tl

SPAN = 1024


@triton.jit
def _bucket(value):
    """The symbol of an integer, as in wire/integers.py; the exponent is read off the float."""
    z = tl.where(value >= 0, 2 * value, -2 * value - 1)
    exponent = (z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.maximum(exponent, 4)
    large = 16 + 4 * (exponent - 4) + ((z >> (exponent - 2)) & 3)
    return tl.where(z < 16, z, large)


@triton.jit
def add_update_on_gpu(total, change, indices, steps, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    where = tl.load(indices + at, mask=inside, other=0)
    before = tl.load(total + where, mask=inside, other=0)
    after = before + tl.load(steps + at, mask=inside, other=0)
    tl.store(total + where, after, mask=inside)
    # Lanes outside have moved from zero to zero, which cancels.
    moved = tl.histogram(_bucket(after), 256) - tl.histogram(_bucket(before), 256)
    symbols = tl.arange(0, 256)
    tl.atomic_add(change + symbols, moved, mask=moved != 0)
