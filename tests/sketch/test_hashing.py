"""The hash against an independent implementation, written from docs/hash.md alone."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fetchsgd import CountSketch
from fetchsgd.sketch import hashing
from fetchsgd.sketch.hashing import BlockHash, draw_placements

MASK = 2**64 - 1
PAGE = (Path(__file__).parents[2] / "docs" / "hash.md").read_text()


def philox_block(counter, key):
    """Philox4x64-10 (Salmon et al. 2011) in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(second >> 64) ^ c[1] ^ k[0], second & MASK, (first >> 64) ^ c[3] ^ k[1], first & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def word(seed, row, block):
    return philox_block([block // 4 + 1, 0, 0, 0], [seed, row])[block % 4]


def place(seed, row, cols, block):
    drawn = word(seed, row, block)
    return (drawn >> 1) * cols >> 63, 1 - 2 * (drawn & 1)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("cols", [1, 2, 1000, 1_240_000, 2**30])
def test_placements_follow_the_page(seed, cols):
    packed = draw_placements(seed, 3, cols, 11)
    for block in range(11):
        start, sign = place(seed, 3, cols, block)
        assert (packed[block] >> 1, 1 - 2 * (packed[block] & 1)) == (start, sign)


def test_threads_draw_the_same_stream(monkeypatch, restore_threads):
    monkeypatch.setattr(hashing, "DRAWN", 1 << 12)
    torch.set_num_threads(3)
    packed = draw_placements(5, 1, 1000, (1 << 17) + 3)
    for block in (0, 4095, 4096, 4097, 99_999, (1 << 17) + 2):
        start, sign = place(5, 1, 1000, block)
        assert (packed[block] >> 1, 1 - 2 * (packed[block] & 1)) == (start, sign)


def test_vectors_of_the_page_are_right():
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| `0x([0-9a-f]{16})` \| (\d+) \| ([+−]1) \|", PAGE, re.M
    )
    assert len(rows) >= 8
    for seed, row, block, drawn, start, sign in rows:
        assert word(int(seed), int(row), int(block)) == int(drawn, 16)
        expected = int(start), int(sign.replace("−", "-"))
        assert place(int(seed), int(row), 1000, int(block)) == expected


def test_table_of_the_page_is_right():
    """The worked example: the sketch of (1, 2, ..., 10) with rows=2, cols=5, block=4, seed=9."""
    table = CountSketch(10, 2, 5, seed=9, block=4).sketch(torch.arange(1.0, 11.0))
    printed = [
        [float(n.replace("−", "-")) for n in line.split()]
        for line in re.findall(r"^    row \d: (.*)$", PAGE, re.M)
    ]
    assert table.tolist() == printed


def test_each_coordinate_lands_where_the_page_says():
    dim, cols, block, seed = 50, 13, 8, 5
    sketch = CountSketch(dim, 1, cols, seed=seed, block=block)
    for i in range(dim):
        start, sign = place(seed, 0, cols, i // block)
        expected = torch.zeros(1, cols)
        expected[0, (start + i % block) % cols] = sign
        one = torch.zeros(dim)
        one[i] = 1
        assert torch.equal(sketch.sketch(one), expected)


def test_block_1_is_the_textbook_sketch():
    """Each coordinate has a bucket and a sign of its own (appendix C, algorithm 2)."""
    dim, rows, cols = 200, 3, 17
    hash = BlockHash(dim, rows, cols, 1, 0)
    buckets, signs = hash.placements >> 1, 1 - 2 * (hash.placements & 1)
    x = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    expected = np.zeros((rows, cols))
    for j in range(rows):
        for i in range(dim):
            expected[j, buckets[j, i]] += signs[j, i] * x[i]
    table = CountSketch(dim, rows, cols, block=1).sketch(torch.from_numpy(x))
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-5)


def test_starts_and_signs_are_uniform():
    """Chi-square over 100 starts and 2 signs, far inside six standard deviations."""
    packed = draw_placements(0, 0, 100, 100_000)
    counts = np.bincount(packed, minlength=200)
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert abs(chi_square - 199) < 6 * np.sqrt(2 * 199)
