"""Sizes that the kernels of one step per message agree on."""

from __future__ import annotations

import math

import torch

# Numbers whose squares are added up on their own: below 2^48 each, so a sum stays below 2^63.
CHUNK = 4096
# Bits that are cut from the sums of chunks, so that those of a whole row can be added up.
CHUNK_SHIFT = 20
# The largest level that each type holds here; a place, 2^24 times a level, is exact in float32.
MOST_LEVEL = {torch.int8: 127, torch.int16: 32767, torch.int32: 1 << 30}


def num_chunks(count: int) -> int:
    """Chunks that `count` numbers fill, the last one perhaps in part."""
    return -(-count // CHUNK)


def level_type(count: int, tau: float) -> torch.dtype:
    """The smallest type for levels of steps of tau times the rms of `count` numbers.

    One number may hold all of the length: |x| <= sqrt(count) rms.
    """
    most = 1.01 * math.sqrt(count) / tau + 2
    return next((kind for kind, top in MOST_LEVEL.items() if most <= top), torch.int32)
