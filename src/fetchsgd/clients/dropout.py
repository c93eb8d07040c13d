"""Dropout that depends on the run, the round, the client and the example alone.

torch's dropout draws from a global generator, so what it drops depends on who else is in a batch.
While `keyed_dropout` lasts, torch's functions (and the layers that call them) drop by a hash of a
key of the example, the number of the call within the pass, and the place within the example. So a
client drops the same in a batch with others, alone, under vmap, and on a machine of its own.

That takes batches whose first dimension is the examples, or a multiple of it, as where attention
has its heads there. Elsewhere torch draws as it always does; so do recurrent layers, fused
attention, and a model's own draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# Dimensions behind the first that share a fate, as whole channels of an image do: by function,
# the number of dimensions of an example that are dropped together.
TOGETHER = {"dropout": 0, "dropout1d": 1, "dropout2d": 2, "dropout3d": 3}
NATIVE: dict[str, Callable[..., Tensor]] = {name: getattr(functional, name) for name in TOGETHER}
BITS = 24  # of a uniform number

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ODD, MIX_1, MIX_2 = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35


class DrawnTwiceError(RuntimeError):
    """Dropout on the way back, where a model with checkpoints computes parts of it once more."""


class Draws(threading.local):
    """What a pass drops by; none outside of one."""

    keys: Tensor | None = None
    calls: int = 0
    is_over: bool = False


DRAWS = Draws()


@contextmanager
def keyed_dropout(keys: Int64[Tensor, " b"] | None) -> Iterator[None]:
    """While this lasts, a forward pass over examples with these keys drops by them."""
    before = DRAWS.keys, DRAWS.calls, DRAWS.is_over
    DRAWS.keys, DRAWS.calls, DRAWS.is_over = keys, 0, False
    try:
        for name in TOGETHER if keys is not None else ():
            setattr(functional, name, partial(_dropout, name))
        yield
    finally:
        DRAWS.keys, DRAWS.calls, DRAWS.is_over = before
        if DRAWS.keys is None:
            for name, native in NATIVE.items():
                setattr(functional, name, native)


def forward_is_over() -> None:
    """From here on, until the block ends, dropout would be of another pass."""
    DRAWS.is_over = True


def _dropout(
    name: str, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    keys = DRAWS.keys
    if keys is None or not training or not 0 < p < 1 or not input.ndim or input.shape[0] == 0:
        return NATIVE[name](input, p, training, inplace)
    if input.shape[0] % len(keys) or input.ndim < 1 + TOGETHER[name]:
        return NATIVE[name](input, p, training, inplace)
    if DRAWS.is_over:
        raise DrawnTwiceError
    DRAWS.calls += 1
    shape = input.shape[: input.ndim - TOGETHER[name]]
    kept = keep(keys, DRAWS.calls, shape, p).to(input.dtype) / (1 - p)
    return input * kept.view(*shape, *(1 for _ in range(TOGETHER[name])))


def keep(keys: Int64[Tensor, " b"], call: int, shape: torch.Size, p: float) -> Tensor:
    """A mask of this shape, whose first dimension is the examples or a multiple of them."""
    own = mixed(keys + signed(call * GOLDEN, 64))
    low, high = (as_int32(part)[:, None] for part in (own, own >> 32))
    places = torch.arange(shape.numel() // len(keys), dtype=torch.int32, device=keys.device)
    bits = (places * signed(ODD, 32)) ^ low
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * signed(MIX_1, 32)
    bits = (bits ^ high ^ ((bits >> 13) & 0x7FFFF)) * signed(MIX_2, 32)
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    kept: Tensor = (bits & ((1 << BITS) - 1)) >= round(p * (1 << BITS))
    return kept.view(shape)


def mixed(keys: Any) -> Any:
    """SplitMix64's finaliser, for int64 tensors; shifts are of the bits, not of the numbers."""
    keys = (keys ^ ((keys >> 30) & ((1 << 34) - 1))) * signed(FIRST, 64)
    keys = (keys ^ ((keys >> 27) & ((1 << 37) - 1))) * signed(SECOND, 64)
    return keys ^ ((keys >> 31) & ((1 << 33) - 1))


def as_int32(numbers: Int64[Tensor, ...]) -> Tensor:
    """The low 32 bits."""
    return ((numbers & 0xFFFFFFFF) ^ (1 << 31)).sub(1 << 31).int()


def signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def example_keys(
    base: int, clients: NDArray[np.int64], within: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A key for each example, from the round's number, its client and its place there."""
    with np.errstate(over="ignore"):
        owner = mixed(np.int64(base) + clients * np.int64(signed(GOLDEN, 64)))
        keys: NDArray[np.int64] = mixed(owner + within * np.int64(signed(FIRST, 64)))
    return keys


def next_step(keys: Int64[Tensor, ...], step: int) -> Int64[Tensor, ...]:
    """Keys of the same examples in a later local step."""
    return keys + signed(step * SECOND, 64)
