"""Cells as planes of bits: packed, added and subtracted as whole numbers are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.secure import planes
from fetchsgd.secure.masks import add_masks, keystream
from fetchsgd.secure.secret import Secret

SIZES = st.one_of(st.integers(1, 1300), st.integers(4090, 13_000))
BITS = st.integers(planes.LEAST_BITS, planes.MOST_BITS)


def some(cells, bits, seed):
    return np.random.default_rng(seed).integers(0, 1 << bits, cells, dtype=np.uint32)


def place(cell, bit, cells, bits):
    """Of a bit in the packed words, from the text of planes.py."""
    group, within = divmod(cell, 64)
    groups = -(-cells // 64)
    block, lane = divmod(group, 64)
    width = min(64, groups - 64 * block)
    return block * 64 * bits + bit * width + lane, within


@given(SIZES, BITS, st.integers(0, 99))
def test_packing(cells, bits, seed):
    x = some(cells, bits, seed)
    words = planes.pack(x, bits)
    assert words.nbytes == planes.num_bytes(cells, bits)
    assert np.array_equal(planes.unpack(words, cells, bits), x)
    cell, bit = seed * cells // 100, seed * bits // 100
    word, within = place(cell, bit, cells, bits)
    assert int(words[word]) >> within & 1 == int(x[cell]) >> bit & 1


@given(SIZES, BITS, st.integers(0, 99), st.booleans())
def test_sums_and_differences(cells, bits, seed, negative):
    x, y = some(cells, bits, seed), some(cells, bits, seed + 100)
    words = planes.pack(x, bits)
    planes.add(words, planes.pack(y, bits), bits, negative)
    wanted = (x - y if negative else x + y).astype(np.uint64) % (1 << bits)
    assert np.array_equal(planes.unpack(words, cells, bits), wanted)


@pytest.mark.parametrize(("cells", "bits"), [(1, 4), (700, 7), (200_000, 8), (140_001, 32)])
def test_masks_are_the_keystream(cells, bits):
    """In one piece or in several."""
    key = Secret(b"a key for a test, of 32 bytes...")
    words, totals = planes.pack(some(cells, bits, 0), bits), np.arange(3, dtype=np.uint64)
    before = words.copy()
    add_masks(totals, words, bits, [(key, False)])
    stream = np.frombuffer(keystream(key, 24 + words.nbytes), "<u8")
    assert np.array_equal(totals, np.arange(3, dtype=np.uint64) + stream[:3])
    wanted = before.copy()
    planes.add(wanted, stream[3:].copy(), bits, negative=False)
    assert np.array_equal(words, wanted)
    add_masks(totals, words, bits, [(key, True)])
    assert np.array_equal(words, before)
    assert np.array_equal(totals, np.arange(3, dtype=np.uint64))
