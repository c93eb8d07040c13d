"""Bucket symbols of integers as docs/wire.md defines them, and integers to try."""

import numpy as np


def on_the_page(value):
    """The symbol as the page defines it."""
    z = 2 * value if value >= 0 else -2 * value - 1
    if z < 16:
        return z
    e = z.bit_length() - 1
    return 4 * e + (z >> e - 2 & 3)


def integers(bits):
    """Integers of so many bits: all small ones, around every power of two, random, the extremes."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    around = [s * (2**e + d) for e in range(bits) for d in (-1, 0, 1) for s in (1, -1)]
    thirds = [s * (3 * 2**e + d) for e in range(bits) for d in (-1, 0) for s in (1, -1)]
    rng = np.random.default_rng(0)
    random = rng.integers(least, most, 2000) >> rng.integers(0, bits - 1, 2000)
    found = [*range(-40, 40), *around, *thirds, *random.tolist(), least, least + 1, most]
    return [value for value in found if least <= value <= most]
