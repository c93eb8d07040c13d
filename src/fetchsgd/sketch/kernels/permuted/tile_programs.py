"""What Triton programs that sum or walk over everything have in common: tiles of blocks.

Tensors have four axes: vectors, parts of a block, blocks, and places in a part, which share a word
of signs. Threads are spread over the last two. What belongs to a block is computed by each thread
that holds some of it, or by one for all; and a thread holds VECTOR neighbours in every part and of
every vector: that keeps arithmetic below the time that memory takes.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.permuted.hash_programs import mix


@triton.jit
def _exchanged(values, wanted, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr):
    """Neighbours change places, in registers, if that is wanted."""
    left, right = tl.split(tl.reshape(values, (N, W, T, P // 2, 2)))
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(swapped, (N, W, T, P))


@triton.jit
def _exchanged_pairs(
    values, wanted, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr
):
    """The same at distance two."""
    pairs = tl.permute(tl.reshape(values, (N, W, T, P // 4, 2, 2)), (0, 1, 2, 3, 5, 4))
    left, right = tl.split(pairs)
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(tl.permute(swapped, (0, 1, 2, 3, 5, 4)), (N, W, T, P))


@triton.jit
def in_place(
    values, flip, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Values read at aligned places, each moved to its own."""
    if VECTOR >= 2:
        values = _exchanged(values, (flip & 1) != 0, N, W, T, P)
    if VECTOR >= 4:
        values = _exchanged_pairs(values, (flip & 2) != 0, N, W, T, P)
    return values


@triton.jit
def for_all(found, lane, T: tl.constexpr, P: tl.constexpr, SHARE: tl.constexpr):
    """What one of the SHARE threads of a part has found, (T, SHARE), for all of them: (T, P)."""
    one = tl.gather(found, tl.full((T, SHARE), lane, tl.int32), axis=1)
    spread = tl.broadcast_to(one[:, :, None], (T, SHARE, P // SHARE))
    # The compiler cannot know: what a thread holds of a part is one number.
    return tl.max_constancy(tl.reshape(spread, (T, P)), [1, P // SHARE])


@triton.jit
def sign_runs(
    t, place, flip, key, mask, BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """sign_words for blocks t and flips of several groups: (runs, T, groups)."""
    mask = mask.to(tl.uint32, bitcast=True)
    if BLOCK < 32:
        drawn = mix(((t * BLOCK) >> 5) * 0x9E3779B1 + key) & mask
        return (drawn >> ((t * BLOCK) & 31))[None, :, :]
    else:
        count: tl.constexpr = W * P // 32
        flip = flip.to(tl.int32) // 32
        runs = (place // 32 + tl.arange(0, count)[:, None, None]) ^ flip[None, :, :]
        runs = runs.to(tl.uint32) + t[None, :, :] * (BLOCK // 32)
        return mix(runs * 0x9E3779B1 + key[None, :, :]) & mask


@triton.jit
def runs_for_all(
    runs, lane, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, SHARE: tl.constexpr
):
    """for_all of the words of sign_runs, which parts of one run share: (1, W, T, P)."""
    count: tl.constexpr = runs.shape[0]
    one = tl.gather(runs, tl.full((count, T, SHARE), lane, tl.int32), axis=2)
    spread = tl.broadcast_to(one[:, None, :, :, None], (count, W // count, T, SHARE, P // SHARE))
    return tl.reshape(spread, (1, W, T, P))


@triton.jit
def flipped_within(place, flip, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr):
    """Places within blocks, flipped but for what in_place does: (1, W, 1, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    part = (place + tl.arange(0, W) * P) ^ (flip & (-P))
    within = tl.arange(0, P) ^ (flip & (P - 1))
    at = part[None, :, None, None] + within[None, None, None, :]
    # The compiler cannot know: VECTOR neighbours stay neighbours, in order.
    return tl.max_contiguous(tl.multiple_of(at, [1, 1, 1, VECTOR]), [1, 1, 1, VECTOR])


@triton.jit
def flipped_at(
    t, place, flip, BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr
):
    """Where blocks t have these places, flipped but for what in_place does: (1, W, T, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    part = (place + tl.arange(0, W) * P) ^ (flip & (-P))
    within = tl.arange(0, P) ^ (flip & (P - 1))
    parts = t.to(tl.int32)[None, None, :, None] * BLOCK + part[None, :, None, None]
    at = parts + within[None, None, None, :]
    # The compiler cannot know: VECTOR neighbours stay neighbours, in order.
    return tl.max_contiguous(tl.multiple_of(at, [1, 1, 1, VECTOR]), [1, 1, 1, VECTOR])


@triton.jit
def sign_words(
    t, place, flip, key, mask,
    BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The words that have the signs of blocks t, from their first bit on: (1, 1 or W, T, 1)."""
    mask = mask.to(tl.uint32, bitcast=True)
    if BLOCK < 32:
        drawn = mix(((t * BLOCK) >> 5) * 0x9E3779B1 + key) & mask
        return (drawn >> ((t * BLOCK) & 31))[None, None, :, None]
    else:
        # Parts of one run have equal numbers here, which are constants, and share a word.
        flip = flip.to(tl.int32) & (-VECTOR)
        part = tl.arange(0, W) * P
        runs = ((place // 32 + part // 32) ^ (flip // 32)).to(tl.uint32)
        drawn = mix((t[None, :] * (BLOCK // 32) + runs[:, None]) * 0x9E3779B1 + key) & mask
        return drawn[None, :, :, None]


@triton.jit
def sign_bits(drawn, flip, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr):
    """The signs of what flipped_at gives, in the highest bit, from their words: (1, W, T, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    part, within = tl.arange(0, W) * P, tl.arange(0, P)
    # First what VECTOR neighbours have in common, then what is known to the compiler.
    common = 32 - VECTOR - ((part ^ (flip & (-P))) & 31)[:, None]
    common = common - ((within & (-VECTOR)) ^ (flip & (P - 1)))[None, :]
    own = VECTOR - 1 - (within & (VECTOR - 1))
    drawn = drawn << common.to(tl.uint32)[None, :, None, :]
    return (drawn << own.to(tl.uint32)[None, None, None, :]) & 0x80000000
