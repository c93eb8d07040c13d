"""Pictures of ten kinds, 8 x 8 pixels of -1 and 1: a pattern for each, and some pixels flipped.

Everything is a whole number and follows from the seed, so that all machines have the same.
"""

from __future__ import annotations

import numpy as np

KINDS, PIXELS = 10, 64
PER_CLIENT = 64  # a power of two: a mean over them is exact
FLIPPED = 3 << 28  # of 2^32: three sixteenths of the pixels
TEST = 1 << 20  # the number under which the test set is drawn, far from those of clients


def examples(client: int, count: int = PER_CLIENT, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (count, 64) in float32, and the kind of each picture."""
    patterns = (_words(seed, 2 * TEST, KINDS * PIXELS) >> 31).reshape(KINDS, PIXELS)
    words = _words(seed, client, count * (PIXELS + 1)).reshape(count, PIXELS + 1)
    kinds = words[:, 0] % KINDS
    flips = words[:, 1:] < FLIPPED
    return np.where(patterns[kinds] ^ flips, 1, -1).astype(np.float32), kinds.astype(np.int64)


def _words(seed: int, stream: int, count: int) -> np.ndarray:
    """So many numbers of 32 bits."""
    raw = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
    return raw >> np.uint64(32)
