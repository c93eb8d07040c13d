"""Sparse integers in chunks: what goes in comes out, in hardly more bits than there must be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire.messages import assert_predicted, same

from fetchsgd.wire import (
    Coding,
    DenseVector,
    Integers,
    Reader,
    SparseIntegers,
    SparseUpdate,
    WireError,
    decode,
    encode,
)
from fetchsgd.wire.choices import choose
from fetchsgd.wire.chunk_sizes import (
    _best,
    _best_starts,
    _with_tables,
    best_code,
    sparse_bytes,
)
from fetchsgd.wire.chunk_statistics import chunk_statistics
from fetchsgd.wire.chunks import ChunkCode, read_sparse, write_sparse
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.positions import CHUNKS
from fetchsgd.wire.sharing import GROUPS
from fetchsgd.wire.sizes import HEADER_BYTES

INT64 = st.integers(-(2**63), 2**63 - 1)


def sparse(levels):
    return SparseIntegers.from_dense(torch.as_tensor(levels))


def entropy(levels):
    """Bytes of independent numbers that occur as often as these do."""
    _, counts = np.unique(levels, return_counts=True)
    return -(counts * np.log2(counts / counts.sum())).sum() / 8


def check(values):
    message = encode(DenseVector(values))
    found, choices = parse(message)
    assert same(found.values, values)
    assert write(found, choices) == message
    assert encode(found) == message
    assert_predicted(values.section_bytes(), message)
    return message


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 4096, 65_537, 300_001])
@pytest.mark.parametrize("density", [0, 1e-4, 0.03, 0.5, 1])
def test_any_number_at_any_density(count, density):
    rng = np.random.default_rng(count)
    levels = (rng.random(count) < density) * rng.integers(-3, 4, count)
    check(sparse(levels))


@given(st.dictionaries(st.integers(0, 399), INT64.filter(bool)), st.integers(400, 600))
@settings(max_examples=60, deadline=None)
def test_any_integers(entries, count):
    at = sorted(entries)
    values = [entries[i] for i in at]
    check(SparseIntegers(count, *(torch.tensor(x, dtype=torch.int64) for x in (at, values))))


@pytest.mark.parametrize("n", range(65))
def test_every_size_of_a_set(n):
    """The first and the last rank of each, and some between."""
    rng = np.random.default_rng(n)
    levels = np.zeros((20, 64), dtype=np.int64)
    levels[0, :n] = levels[1, 64 - n :] = 1
    for row in levels[2:]:
        row[rng.permutation(64)[:n]] = 1
    check(sparse(levels.ravel()))


@pytest.mark.parametrize("density", [0.003, 0.01, 0.03, 0.1, 0.3, 0.7])
def test_independent_numbers_take_their_entropy(density):
    """Within 0.3 % and 100 bytes for tables and segments: here nothing can be gained."""
    rng = np.random.default_rng(0)
    levels = (rng.random(1_000_000) < density) * np.rint(rng.normal(size=1_000_000) * 2)
    size = len(check(sparse(levels.astype(np.int64)))) - HEADER_BYTES
    assert size < 1.003 * entropy(levels) + 100


@pytest.mark.parametrize("scale", [1, 3])
def test_small_messages_take_three_percent_more_at_most(scale):
    """As many weights as digits has: above 2 kB, with tables and all."""
    rng = np.random.default_rng(0)
    levels = (rng.random(85_066) < 0.03) * np.rint(rng.normal(size=85_066) * scale)
    assert len(check(sparse(levels.astype(np.int64)))) - HEADER_BYTES < 1.03 * entropy(levels)


def gradient_like(rng, rows=300, columns=1200):
    """Density that varies between channels, size that varies between layers."""
    density = 0.05 * rng.exponential(size=(rows, 1)) * rng.exponential(size=(1, columns))
    layer = 1 + 8 * (np.arange(rows)[:, None] > rows // 2)
    taken = rng.random((rows, columns)) < density
    return (taken * layer * rng.choice([-1, 1], (rows, columns))).astype(np.int64).ravel()


def test_what_varies_takes_less_than_its_entropy():
    levels = gradient_like(np.random.default_rng(0))
    values = sparse(levels)
    assert len(check(values)) < 0.9 * entropy(levels)
    code = best_code(values.statistics)
    assert len(code.counts) > 1
    assert len(code.values) > 1


def test_updates_are_in_chunks_where_that_is_smallest():
    levels = torch.from_numpy(gradient_like(np.random.default_rng(1)))
    at = levels.nonzero().squeeze(1)
    update = SparseUpdate(len(levels), at, Integers(levels[at]), 5, 2)
    assert choose(update).positions == CHUNKS
    found, choices = parse(encode(update))
    assert same(found, update)
    assert write(found, choices) == encode(update)


def test_the_best_groups_are_the_best():
    """Against every way to cut nine classes."""
    found = sparse(gradient_like(np.random.default_rng(2))).statistics
    costs = _with_tables(found)[0][0].tolist()
    sizes = {}
    for mask in range(256):
        starts = [0, *(i + 1 for i in range(8) if mask >> i & 1)]
        ends = [*starts[1:], 9]
        sizes[mask] = sum(costs[GROUPS.index(pair)] for pair in zip(starts, ends, strict=True))
    assert _best_starts(costs)[0] == pytest.approx(min(sizes.values()))
    assert float(_best(torch.tensor([costs]))) == pytest.approx(min(sizes.values()))


def test_a_writer_may_choose_worse():
    """One table for all classes and pages, of the least precision."""
    levels = np.zeros(1000, dtype=np.int64)
    levels[::7] = 1
    values = sparse(levels)
    counts = np.zeros((1, 65), dtype=np.int64)
    counts[0, :32] = 2**9
    nonzeros = np.zeros((1, 180), dtype=np.int64)
    nonzeros[0, 1:3] = 2**13
    groups, pages = np.zeros(9, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    code = ChunkCode(8, groups, counts, nonzeros, pages)
    section = values.write(Coding(5, chunks=code))
    indices, found, again = read_sparse(Reader(memoryview(section)), 1000)
    assert indices.tolist() == values.indices.tolist()
    assert found.tolist() == values.values.tolist()
    assert write_sparse(indices, found, 1000, again) == section


def test_sizes_of_many_clients_are_those_of_their_messages():
    rng = np.random.default_rng(3)
    rows = [gradient_like(rng) * (rng.random(360_000) < share) for share in (1, 0.3, 0.03, 0)]
    sizes = sparse_bytes(chunk_statistics(torch.from_numpy(np.stack(rows)).to(torch.int16)))
    for size, row in zip(sizes, rows, strict=True):
        assert_predicted(size, encode(DenseVector(sparse(row))))


def test_zeros_are_made_again():
    values = SparseIntegers(5, torch.tensor([1, 4]), torch.tensor([-2, 7]))
    assert values.floats().tolist() == [0, -2, 0, 0, 7]
    assert values.dense().tolist() == [0, -2, 0, 0, 7]
    assert decode(encode(DenseVector(values))).values.floats().tolist() == [0, -2, 0, 0, 7]


MISTAKES = [
    (lambda: SparseIntegers(3, torch.tensor([0.0]), torch.tensor([1])), "vectors of int64"),
    (lambda: SparseIntegers(3, torch.tensor([0]), torch.tensor([1, 2])), "1 indices need as many"),
    (lambda: SparseIntegers(3, torch.tensor([1, 0]), torch.tensor([1, 2])), "sorted and distinct"),
    (lambda: SparseIntegers(3, torch.tensor([3]), torch.tensor([1])), "from 0 to 2"),
    (lambda: SparseIntegers(3, torch.tensor([2]), torch.tensor([0])), "not zero"),
]


@pytest.mark.parametrize(("make", "sentence"), MISTAKES)
def test_mistakes_get_a_sentence(make, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        make()


def section(head=b"", *, directory=b"\x01\x04"):
    return directory + head


# A count of 1 for sure, and the values 1 and -1, in tables that add up to 2^8.
TABLES = b"\x08\x00\x01" + b"\x00\x00\x80\x02" + b"\x00\x00\x80\x01\x80\x01"
STATE = b"\x00\x00\x01\x00"
HOSTILE = {
    "cannot follow from 0 bytes": b"",
    "the number of nonzeros of a segment is above 64": b"\x41",
    "a segment of chunks cannot have 2 bytes": b"\x01\x02",
    "a segment of chunks cannot have 5 bytes": b"\x01\x05",
    "precision from 8 to 14, not 7": section(b"\x07\x00\x01"),
    "precision from 8 to 14, not 15": section(b"\x0f\x00\x01"),
    "from 1 to 8 tables of values, not 0": section(b"\x08\x00\x00"),
    "from 1 to 8 tables of values, not 9": section(b"\x08\x00\x09"),
    "a frequency for 0": section(b"\x08\x00\x01\x00\x00\x80\x02\x80\x02" + STATE),
    "below 65536": section(TABLES + b"\xff\xff\x00\x00"),
    "another number of nonzeros": section(TABLES + STATE, directory=b"\x02\x04"),
    "do not end where they should": section(TABLES + b"\x00\x00\x03\x00"),
    "a page has table 2 of 2": section(
        b"\x08\x00\x02\x00\x00\x80\x02" + 2 * b"\x00\x00\x80\x01\x80\x01" + b"\x02" + STATE
    ),
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_sentences(sentence):
    with pytest.raises(WireError, match=sentence):
        read_sparse(Reader(memoryview(HOSTILE[sentence])), 64)


def test_places_beyond_the_last_are_refused():
    data = sparse([0] * 60 + [1]).write(sparse([0] * 60 + [1]).coding())
    with pytest.raises(WireError, match="beyond the last"):
        read_sparse(Reader(memoryview(data)), 60)
