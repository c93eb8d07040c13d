"""The hash without tables against an implementation in Python's integers, written from the page.

Statistical tests have fixed seeds; each says how often a correct hash would fail with other seeds.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sketch.test_hashing import philox_block

from fetchsgd import CountSketch
from fetchsgd.sketch.hashing import round_seed
from fetchsgd.sketch.permutation import Permutation, draw_keys, locate

PAGE = (Path(__file__).parents[2] / "docs" / "hash.md").read_text()
WORD = 2**32


def mix(x):
    x = (x ^ x >> 16) * 0x85EBCA6B % WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 % WORD
    return x ^ x >> 16


def half_mix(x, key):
    z = (x * 0x9E3779B1 + key) % WORD
    return (z ^ z >> 16) * 0x85EBCA6B % WORD


def keys_of(seed):
    first, second, *_ = philox_block([1, 0, 0, 1], [seed, 0])
    return first % WORD, first // WORD, second % WORD, second // WORD


def place(dim, cols, block, seed, row, i):
    """Cell and sign of coordinate i."""
    k0, k1, k2, k3 = keys_of(seed)
    q = cols // block
    if dim <= cols:
        q = -(-dim // block)
    m = -(-dim // (q * block))
    group, y = divmod(i, q * block)
    f = mix((row * m + group + k0) % WORD)
    g = mix((f + k1) % WORD)
    word = mix((y // 32 * 0x9E3779B1 + (g ^ k3)) % WORD)
    sign = 1 - 2 * (word >> y % 32 & 1)
    if dim <= cols:
        return i, sign
    s = (q.bit_length() - 1) // 2
    a = q >> s
    t, p = divmod(y, block)
    t = (t + f * q // WORD) % q
    if t < a << s:
        high, low = t >> s, t % 2**s
        low ^= half_mix(high, f ^ k2) * 2**s // WORD
        high = (high + half_mix(low, g ^ k2) * a // WORD) % a
        low ^= half_mix(high, f ^ k3) * 2**s // WORD
        t = high << s | low
    column = (t + g * q // WORD) % q
    return column * block + (p ^ f % block), sign


@pytest.mark.parametrize(
    ("dim", "rows", "cols", "block"),
    [
        (500, 2, 60, 4),
        (999, 1, 101, 1),
        (3000, 3, 1000, 64),
        (100, 1, 100, 16),
        (90, 2, 7, 2),
        (600, 1, 33, 32),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_each_coordinate_lands_where_the_page_says(dim, rows, cols, block, seed):
    hash = Permutation(dim, rows, cols, block, seed)
    for row in range(rows):
        cells, signs = locate(hash, torch.arange(dim), row)
        expected = [place(dim, cols, block, seed, row, i) for i in range(dim)]
        assert list(zip(cells.tolist(), signs.int().tolist(), strict=True)) == expected


def test_vectors_of_the_page_are_right():
    keys = re.findall(r"^\| (\d+) \| `([0-9a-f]{8} \w{8} \w{8} \w{8})` \|", PAGE, re.M)
    assert len(keys) >= 3
    for seed, words in keys:
        assert [int(word, 16) for word in words.split()] == list(keys_of(int(seed)))
        assert draw_keys(int(seed)) == keys_of(int(seed))
    places = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([+−]1) \|", PAGE, re.M
    )
    assert len(places) >= 8
    for *numbers, cell, sign in places:
        dim, cols, block, seed, row, i = map(int, numbers)
        expected = place(dim, cols, block, seed, row, i)
        assert (int(cell), int(sign.replace("−", "-"))) == expected
        cells, signs = locate(Permutation(dim, 2, cols, block, seed), torch.tensor([i]), row)
        assert (cells.item(), signs.item()) == expected


def test_the_permuted_table_of_the_page_is_right():
    sketch = CountSketch(10, 2, 4, seed=9, block=2, hash="permutation")
    printed = [
        [float(n.replace("−", "-")) for n in line.split()]
        for line in re.findall(r"^    permuted row \d: (.*)$", PAGE, re.M)
    ]
    assert sketch.sketch(torch.arange(1.0, 11.0)).tolist() == printed


def test_seeds_of_rounds_are_those_of_the_page():
    found = re.findall(r"^\| (\d+) \| (\d+) \| `0x([0-9a-f]{16})` \|$", PAGE, re.M)
    assert len(found) >= 3
    for seed, round, word in found:
        assert philox_block([int(round) + 1, 0, 0, 2], [int(seed), 0])[0] == int(word, 16)
        assert round_seed(int(seed), int(round)) == int(word, 16)
    sketch = CountSketch(100, 1, 10, seed=3, hash="permutation")
    assert sketch.for_round(8) == sketch.with_seed(round_seed(3, 8))
    assert sketch.for_round(8) != sketch.for_round(9)


@pytest.mark.parametrize("block", [1, 2, 16])
@pytest.mark.parametrize("cols", [16, 31, 100, 1000, 4099])
@pytest.mark.parametrize("groups", [1.0, 1.3, 7.5])
def test_cells_are_balanced(cols, block, groups):
    """Every cell of a whole column holds one coordinate of each group, the last one excepted."""
    dim = int(cols * groups)
    hash = Permutation(dim, 1, cols, block, seed=5)
    cells, _ = locate(hash, torch.arange(dim), 0)
    loads = cells.bincount(minlength=cols)
    used = min(hash.width * block, dim)
    assert loads[used:].sum() == 0
    assert set(loads[:used].tolist()) <= {hash.groups - 1, hash.groups}
    if dim <= cols:
        assert loads.max() == 1


def permutations(width, count, seed):
    """Columns and signs of `count` groups of blocks of one coordinate."""
    hash = Permutation(width * count, 1, width, 1, seed)
    cells, signs = locate(hash, torch.arange(width * count), 0)
    return cells.view(count, width), signs.view(count, width)


@pytest.mark.parametrize("width", [31, 100, 1000])
def test_two_coordinates_meet_once_in_so_many_keys(width):
    """For fixed pairs in different groups, over 4,000 keys; four standard deviations, 50 pairs.

    A correct hash fails with probability 50 * 6e-5.
    """
    keys = 4000
    met = torch.zeros(50)
    for seed in range(keys // 50):
        columns, _ = permutations(width, 100, seed)
        for n in range(50):  # pairs at the same place, and at distances of powers of two
            shift = 0 if n < 10 else 1 << (n % 5)
            a, b = columns[:50, n % width], columns[50:, (n + shift) % width]
            met[n] += (a == b).sum()
    expected = keys / width
    assert ((met - expected).abs() < 4 * expected**0.5).all()


@pytest.mark.parametrize("width", [64, 1000, 20_000])
@pytest.mark.parametrize("distance", [1, 2, 16])
def test_neighbours_part(width, distance):
    """Blocks at a distance meet blocks at random distances of another group.

    Were meetings at t and t + distance related, some distance between partners would repeat. The
    mean square of how often each occurs is 2 for random permutations; over these numbers of pairs
    its standard deviation is below 0.03.
    """
    count = 400 if width < 5000 else 40
    columns, _ = permutations(width, count, seed=11)
    ours, theirs = columns[: count // 2], columns[count // 2 :]
    partner = torch.empty_like(theirs)
    partner.scatter_(1, theirs, torch.arange(width).expand(count // 2, width))
    partner = partner.gather(1, ours)
    apart = (partner.roll(-distance, 1) - partner) % width
    seen = torch.zeros(count // 2, width).scatter_add_(1, apart, torch.ones(count // 2, width))
    assert abs(seen.square().sum(1).mean() / width - 2) < 0.15


def test_signs_are_fair_and_independent():
    """Sums of products of signs, at distances that structure would show at; five deviations each.

    A correct hash fails with probability 40 * 6e-7.
    """
    _, signs = permutations(1024, 1000, seed=2)
    flat = signs.flatten().double()
    assert abs(flat.sum()) < 5 * len(flat) ** 0.5
    for distance in [1, 2, 3, 4, 8, 16, 31, 32, 33, 64, 128, 1000, 1023, 1024, 1025, 32 * 1024]:
        product = flat[distance:] * flat[:-distance]
        assert abs(product.sum()) < 5 * len(product) ** 0.5
    for bit in range(32):  # every bit of a word, over words
        assert abs(flat[bit::32].sum()) < 5 * (len(flat) / 32) ** 0.5


def test_rows_and_seeds_have_hashes_of_their_own():
    """Two hashes send a coordinate to one cell as often as chance does: six deviations."""
    dim, cols = 100_000, 1000
    one = Permutation(dim, 2, cols, 1, seed=0)
    other = Permutation(dim, 1, cols, 1, seed=1)
    everything = torch.arange(dim)
    first, signs = locate(one, everything, 0)
    for hash, row in ((one, 1), (other, 0)):
        cells, more = locate(hash, everything, row)
        assert abs(int((cells == first).sum()) - dim / cols) < 6 * (dim / cols) ** 0.5
        assert abs(float((signs * more).sum())) < 6 * dim**0.5


def test_a_new_key_holds_nothing_that_grows():
    """At sizes where anything that grows with dim or cols could not be made."""
    sketch = CountSketch(10**11, 5, 10**9, block=256, hash="permutation")
    fresh = sketch.with_seed(12)
    assert (fresh.dim, fresh.rows, fresh.cols, fresh.seed) == (10**11, 5, 10**9, 12)
    at = torch.tensor([0, 10**11 - 1])
    cells, signs = locate(fresh._hash, at, 4)
    assert ((cells >= 0) & (cells < 10**9)).all()
    assert np.abs(signs.numpy()).tolist() == [1, 1]
