"""Secret sharing against a library that is compatible with HashiCorp's Vault, and its laws."""

import itertools

import numpy as np
import pyshamir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd.secure.shamir import combine, split, times_public

ALL = np.arange(256, dtype=np.uint8)


def multiply(a, b):
    """In GF(2^8), as one would on paper."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def test_every_product():
    found = times_public(ALL[:, None], ALL[None, :])
    assert found[0x57, 0x83] == 0xC1  # the example of FIPS 197
    assert found.tolist() == [[multiply(a, b) for b in range(256)] for a in range(256)]


def shares_of(secret, threshold, holders, seed=0):
    random = np.random.default_rng(seed).bytes((threshold - 1) * len(secret))
    return split(secret, random, threshold, holders)


@settings(max_examples=30)  # the library takes its time
@given(st.binary(min_size=1, max_size=8), st.integers(2, 12), st.integers(0, 8), st.randoms())
def test_any_holders_that_are_enough_restore_it(secret, threshold, more, random):
    shares = shares_of(secret, threshold, threshold + more)
    holders = random.sample(range(threshold + more), random.randint(threshold, threshold + more))
    assert combine([i + 1 for i in holders], shares[holders]) == secret
    parts = [bytearray(shares[i].tobytes() + bytes([i + 1])) for i in holders]
    assert pyshamir.combine(parts) == secret


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=32), st.integers(2, 10), st.integers(0, 5))
def test_shares_of_the_library_are_restored(secret, threshold, more):
    parts = pyshamir.split(secret, threshold + more, threshold)[more:]
    shares = np.array([list(part[:-1]) for part in parts], dtype=np.uint8)
    assert combine([part[-1] for part in parts], shares) == secret


def test_fewer_holders_know_nothing():
    """Whatever two of three hold, each secret byte is as likely: as many polynomials give it."""
    for first, second in ((0, 0), (17, 250)):
        fits = [
            combine([1, 2, 3], np.array([[first], [second], [third]], dtype=np.uint8))[0]
            for third in range(256)
        ]
        assert sorted(fits) == list(range(256))


def test_the_most_holders():
    secret = bytes(range(32))
    shares = shares_of(secret, 255, 255)
    assert combine(range(1, 256), shares) == secret
    assert combine(range(1, 255), shares[:-1]) != secret


def test_mistakes():
    for threshold, holders in ((0, 3), (4, 3), (2, 256)):
        with pytest.raises(ValueError, match="threshold"):
            split(b"x", bytes(max(threshold - 1, 0)), threshold, holders)
    with pytest.raises(ValueError, match="coefficients"):
        split(b"xy", b"1", 2, 3)
    shares = np.zeros((2, 1), dtype=np.uint8)
    for places in itertools.chain([(1, 1)], [(0, 1)], [(1, 256)]):
        with pytest.raises(ValueError, match="distinct"):
            combine(places, shares)
