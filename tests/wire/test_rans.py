"""The entropy coder: against the plain reader of the page, and against Shannon."""

import numpy as np
import pytest
from plain_client import reading as oracle
from wire.messages import quantised

from fetchsgd.quantisers.level_section import cell_counts, product_frequencies
from fetchsgd.quantisers.level_sizes import CELL_TOTAL
from fetchsgd.wire import WireError, rans
from fetchsgd.wire.rans import SYMBOLS, TOTAL, normalise, read_table, table_bytes
from fetchsgd.wire.reader import Reader

SIZES = [0, 1, 2, 3, 4, 5, 100, 16383, 16384, 16385, 16387, 65536]


def skewed(n, rng):
    return np.minimum(rng.geometric(0.3, n) - 1, 255).astype(np.uint8)


def model_of(symbols):
    counts = rans.histogram(symbols)
    return rans.Model(normalise(counts if len(symbols) else counts + 1, TOTAL))


@pytest.mark.parametrize("n", SIZES)
def test_symbols_come_back_and_the_page_agrees(n):
    symbols = skewed(n, np.random.default_rng(n))
    model = model_of(symbols)
    data = rans.encode(symbols, model)
    out = np.empty(n, dtype=np.uint8)
    rans.decode_into(out, memoryview(data), model)
    assert (out == symbols).all()
    assert oracle.rans(data, n, model.frequencies.tolist()) == symbols.tolist()
    assert len(data) <= rans.most_bytes(n)


@pytest.mark.parametrize("n", [1, 1000, 20_000])
def test_a_single_symbol_costs_nothing(n):
    symbols = np.full(n, 200, dtype=np.uint8)
    data = rans.encode(symbols, model_of(symbols))
    assert len(data) == 4 * rans.lanes(n)
    out = np.zeros(n, dtype=np.uint8)
    rans.decode_into(out, memoryview(data), model_of(symbols))
    assert (out == 200).all()


@pytest.mark.parametrize("frequency", [1, 2, 3, 5, 7, 8191, 8192, 8193, 16381, 16383])
def test_division_by_reciprocals_is_exact(frequency):
    """Two symbols in all orders of a random sequence, with the hardest divisors."""
    rng = np.random.default_rng(frequency)
    frequencies = np.zeros(SYMBOLS, dtype=np.int64)
    frequencies[[3, 9]] = frequency, TOTAL - frequency
    symbols = rng.choice(np.array([3, 9], dtype=np.uint8), 40_000)
    model = rans.Model(frequencies)
    out = np.empty_like(symbols)
    rans.decode_into(out, memoryview(rans.encode(symbols, model)), model)
    assert (out == symbols).all()


@pytest.mark.parametrize(("bits", "spread"), [(2, 0.3), (2, 0.5), (3, 0.3), (4, 0.33), (8, 0.33)])
def test_within_one_percent_of_the_entropy(bits, spread):
    cells = quantised(bits, 420_000, np.random.default_rng(0), spread)
    symbols = cells.symbols.numpy()[:100_000]
    counts = rans.histogram(symbols)
    share = counts[counts > 0] / len(symbols)
    entropy = -len(symbols) * (share * np.log2(share)).sum() / 8
    models = [normalise(counts, TOTAL)]
    if bits < 6:
        models.append(product_frequencies(normalise(cell_counts(counts, bits), CELL_TOTAL), bits))
    for frequencies in models:
        halves = np.split(symbols, [65536])
        coded = sum(len(rans.encode(half, rans.Model(frequencies))) for half in halves)
        assert coded + len(table_bytes(frequencies)) * (frequencies is models[0]) < 1.01 * entropy


def test_histograms_are_those_of_numpy():
    symbols = skewed(10_001, np.random.default_rng(0))
    assert (rans.histogram(symbols) == np.bincount(symbols, minlength=256)).all()


@pytest.mark.parametrize("seed", range(20))
def test_frequencies_add_up_and_come_back(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 2 ** rng.integers(1, 40), SYMBOLS) * (rng.random(SYMBOLS) < 0.4)
    counts[rng.integers(SYMBOLS)] += 1
    found = normalise(counts, TOTAL)
    assert found.sum() == TOTAL
    assert ((found > 0) == (counts > 0)).all()
    table = table_bytes(found)
    reader = Reader(memoryview(table + b"\7"))
    assert (read_table(reader, SYMBOLS, TOTAL) == found).all()
    assert reader.left == 1


def test_products_follow_the_page():
    rng = np.random.default_rng(0)
    for bits in (2, 3, 4):
        for _ in range(5):
            counts = rng.integers(0, 50, 2**bits - 1)
            cells = normalise(counts + (counts.sum() == 0), CELL_TOTAL)
            found = product_frequencies(cells, bits)
            padded = [*cells.tolist(), 0]
            assert found.tolist() == oracle.products(padded, bits, {2: 4, 3: 2, 4: 2}[bits])
            assert found.sum() == TOTAL


BAD_TABLES = {
    "add up to 16383": bytes([0xFF, 0x7F]) + b"\0\xfe",
    "add up to more": bytes([0xFF, 0x7F, 2]),
    "add up to 0": b"\0\xff",
    "two parts": b"\0\0\0\0\x80\x80\x01",
    "more bytes than it needs": b"\x81\x00",
    "above 16384": b"\xff\xff\x01",
    "needs 1 bytes": b"\x80\x40",
}


@pytest.mark.parametrize("sentence", BAD_TABLES)
def test_bad_tables_are_refused(sentence):
    with pytest.raises(WireError, match=sentence):
        read_table(Reader(memoryview(BAD_TABLES[sentence])), SYMBOLS, TOTAL)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_tables_are_read_fast_as_they_are_read_slowly(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 2 ** rng.integers(1, 20), SYMBOLS) * (rng.random(SYMBOLS) < 0.5)
    counts[rng.integers(SYMBOLS)] += 1
    good = table_bytes(normalise(counts, TOTAL)) + bytes(rng.integers(0, 4))
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.integers(len(bad))] = rng.choice([0, 1, 127, 128, 129, 255])
        assert told(read_table, bytes(bad)) == told(rans._read_table_slowly, bytes(bad))


def told(read, table):
    """What is read and how far, or the sentence that says why not."""
    reader = Reader(memoryview(table))
    try:
        return read(reader, SYMBOLS, TOTAL).tolist(), reader.at
    except WireError as error:
        return str(error)


@pytest.mark.parametrize("n", [5, 1000, 20_000])
def test_damaged_data_are_refused_or_decode_to_what_encodes_to_them(n):
    rng = np.random.default_rng(n)
    symbols = skewed(n, rng)
    model = model_of(symbols)
    data = rans.encode(symbols, model)
    for _ in range(300):
        bad = bytearray(data)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        out = np.empty(n, dtype=np.uint8)
        try:
            rans.decode_into(out, memoryview(bad), model)
        except WireError:
            continue
        assert rans.encode(out, model) == bytes(bad)


@pytest.mark.parametrize("n", [1000, 20_000])
def test_too_few_and_too_many_words_are_refused(n):
    symbols = skewed(n, np.random.default_rng(0))
    model = model_of(symbols)
    data = rans.encode(symbols, model)
    out = np.empty(n, dtype=np.uint8)
    for bad in (data[:-2], data[: 4 * rans.lanes(n)], data + b"\0\0"):
        with pytest.raises(WireError, match="do not end"):
            rans.decode_into(out, memoryview(bad), model)
    with pytest.raises(WireError, match="below 65536"):
        rans.decode_into(out, memoryview(b"\1\0\0\0" + data[4:]), model)


def decode_both(parts, sizes, model):
    """Two segments, one behind another as in a message."""
    out = np.empty(sum(sizes), dtype=np.uint8)
    stream = rans.Segments(memoryview(b"".join(parts)), [len(part) for part in parts], sizes[0])
    stream.decode_into(out, 0, 2, model)
    return np.split(out, [sizes[0]])


@pytest.mark.parametrize("sizes", [(20_000, 20_000), (20_001, 20_001), (20_000, 17_000), (9, 9)])
def test_two_segments_at_once_are_each_as_alone(sizes):
    rng = np.random.default_rng(0)
    symbols = [skewed(n, rng) for n in sizes]
    model = model_of(np.concatenate(symbols))
    outs = decode_both([rans.encode(part, model) for part in symbols], sizes, model)
    assert all((out == part).all() for out, part in zip(outs, symbols, strict=True))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("sizes", [(20_000, 20_000), (20_000, 17_000), (1000, 1000)])
def test_of_two_segments_at_once_a_bad_one_is_refused_as_alone(sizes, which):
    rng = np.random.default_rng(which)
    symbols = [skewed(n, rng) for n in sizes]
    model = model_of(np.concatenate(symbols))
    good = [rans.encode(part, model) for part in symbols]
    head = 4 * rans.lanes(sizes[which])
    one = good[which]
    bad = [one[:-2], one[:head], one + b"\0\0", b"\1\0\0\0" + one[4:]]
    for _ in range(100):
        flipped = bytearray(one)
        flipped[rng.integers(len(flipped))] ^= 1 << rng.integers(8)
        bad.append(bytes(flipped))
    for data in bad:
        parts = [data if i == which else part for i, part in enumerate(good)]
        try:
            outs = decode_both(parts, sizes, model)
        except WireError:
            continue
        assert rans.encode(outs[which], model) == data


def test_a_segment_does_not_end_within_the_next():
    """Cut off by a word, the first would go on with a state of the second."""
    symbols = skewed(40_000, np.random.default_rng(0))
    model = model_of(symbols)
    parts = [rans.encode(half, model) for half in np.split(symbols, 2)]
    sizes = [len(parts[0]) - 2, len(parts[1]) + 2]
    stream = rans.Segments(memoryview(b"".join(parts)), sizes, 20_000)
    with pytest.raises(WireError, match="do not end"):
        stream.decode_into(np.empty(40_000, dtype=np.uint8), 0, 1, model)
