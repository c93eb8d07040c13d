"""Shamir's secret sharing, byte by byte over GF(2^8).

Each byte of a secret is the constant term of its own polynomial of degree threshold - 1; the share
of holder x (1 to 255) is the polynomials' values at x. The field is that of AES: polynomials over
GF(2) modulo x^8 + x^4 + x^3 + x + 1.

Secrets are only ever multiplied by *public* numbers: by a holder's x when shares are made, by
Lagrange's coefficients when they are put together. Such a product is eight shifts and masked XORs,
the same for any secret: no table is looked up at a secret place, and no branch depends on one.
Tables of logarithms are used for the public numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

MOST_HOLDERS = 255
_REDUCTION = 0x1B  # x^8 = x^4 + x^3 + x + 1


def times_public(
    secret: UInt8[ndarray, "*#shape"], public: UInt8[ndarray, "*#shape"]
) -> UInt8[ndarray, "*shape"]:
    """Products in GF(2^8), in a time that does not depend on the values."""
    product = np.zeros(np.broadcast_shapes(secret.shape, public.shape), dtype=np.uint8)
    power = secret
    for bit in range(8):
        product ^= power * ((public >> bit) & 1)
        power = (power << 1) ^ ((power >> 7) * np.uint8(_REDUCTION))
    return product


@lru_cache(maxsize=1)
def _tables() -> tuple[UInt8[ndarray, " 510"], ndarray]:
    """Powers of the generator 3, twice over, and logarithms: for public numbers."""
    powers = np.zeros(510, dtype=np.uint8)
    logarithms = np.zeros(256, dtype=np.int64)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        doubled = value << 1 ^ (value >> 7) * (0x100 | _REDUCTION)
        value ^= doubled
    return powers, logarithms


def split(
    secret: bytes, coefficients: bytes, threshold: int, holders: int
) -> UInt8[ndarray, "holders size"]:
    """The shares of holders 1, 2, ...; `coefficients` are (threshold - 1) * size random bytes."""
    size = len(secret)
    if not 1 <= threshold <= holders <= MOST_HOLDERS:
        raise ValueError(
            f"a threshold of {threshold} of {holders} holders: it must be from 1 to the number of"
            f" holders, and that at most {MOST_HOLDERS}"
        )
    if len(coefficients) != (threshold - 1) * size:
        raise ValueError(f"{len(coefficients)} bytes are not {threshold - 1} x {size} coefficients")
    places = np.arange(1, holders + 1, dtype=np.uint8)[:, None]
    rows = np.frombuffer(coefficients, np.uint8).reshape(threshold - 1, size)
    shares = np.zeros((holders, size), dtype=np.uint8)
    for row in rows:  # Horner: from the highest power down
        shares = times_public(shares ^ row, places)
    return shares ^ np.frombuffer(secret, np.uint8)


def combine(places: Sequence[int], shares: UInt8[ndarray, "holders size"]) -> bytes:
    """The secret whose shares these are, by at least as many distinct holders as the threshold."""
    if len(set(places)) != len(places) or not all(1 <= x <= MOST_HOLDERS for x in places):
        raise ValueError("shares must come from distinct holders, numbered from 1 to 255")
    coefficients = _lagrange(tuple(places))
    terms = times_public(shares, coefficients[:, None])
    return bytes(np.bitwise_xor.reduce(terms, axis=0))


@lru_cache(maxsize=4096)
def _lagrange(places: tuple[int, ...]) -> UInt8[ndarray, " holders"]:
    """What to multiply values at these places by, so that their sum is the value at 0."""
    powers, logarithms = _tables()
    x = np.array(places, dtype=np.int64)
    apart = x[:, None] ^ x[None, :]
    np.fill_diagonal(apart, 1)  # whose logarithm is 0
    exponents = logarithms[x].sum() - logarithms[x] - logarithms[apart].sum(axis=1)
    found: ndarray = powers[exponents % 255]
    return found
