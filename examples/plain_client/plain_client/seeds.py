"""Random numbers that all sides agree on (docs/protocol.md, "Random numbers")."""

from __future__ import annotations

import numpy as np

WORD = 0xFFFFFFFF
QUANTISE = 5  # the purpose of the key by which clients round


def round_key(seed: int, purpose: int, round: int) -> int:
    """A number of 63 bits: numpy's SeedSequence, spelled out."""
    entropy = [word for number in (seed, purpose, round) for word in _words_of(number)]
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & WORD
        value = value * constant & WORD
        return value ^ value >> 16

    pool = [hashed(entropy[i] if i < len(entropy) else 0) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mixed(pool[target], hashed(pool[source]))
    for extra in entropy[4:]:
        for target in range(4):
            pool[target] = _mixed(pool[target], hashed(extra))
    constant, out = 0x8B51F9DD, []
    for value in pool[:2]:
        value ^= constant
        constant = constant * 0x58F38DED & WORD
        value = value * constant & WORD
        out.append(value ^ value >> 16)
    return (out[0] | out[1] << 32) >> 1


def _words_of(number: int) -> list[int]:
    """Words of 32 bits, the lowest first; one for 0."""
    found = [number & WORD]
    while number := number >> 32:
        found.append(number & WORD)
    return found


def _mixed(x: int, y: int) -> int:
    found = (0xCA01F9DD * x - 0x4973F715 * y) & WORD
    return found ^ found >> 16


def random_words(key: int, stream: int, runs: int) -> np.ndarray:
    """A word of 32 bits for each of the 256 numbers of each run: Philox4x32-10."""
    run, place = np.meshgrid(np.arange(runs), np.arange(64), indexing="ij")
    low, high = stream & WORD, stream >> 32
    counter = [place, run, np.full_like(run, low), np.full_like(run, high)]
    a, b, c, d = (part.astype(np.uint64) for part in counter)
    key_a, key_b, half = key & WORD, key >> 32, np.uint64(32)
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (q >> half) ^ b ^ np.uint64(key_a), q & np.uint64(WORD)
        c, d = (p >> half) ^ d ^ np.uint64(key_b), p & np.uint64(WORD)
        key_a, key_b = key_a + 0x9E3779B9 & WORD, key_b + 0xBB67AE85 & WORD
    return np.concatenate([a, b, c, d], axis=1)
