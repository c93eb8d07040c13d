"""What goes in comes out to the bit, and sizes are what they are said to be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire.messages import integers, one_of_each, quantised, same, subset

from fetchsgd.quantisers.levels import Quantised
from fetchsgd.wire import (
    DenseVector,
    Floats,
    Integers,
    SketchTable,
    SparseUpdate,
    WholeModel,
    decode,
    encode,
    num_bytes,
)
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.header import HEADER_BYTES

COUNTS = [0, 1, 2, 3, 255, 256, 257, 1000]
INT64 = st.integers(-(2**63), 2**63 - 1)


def check(payload):
    message = encode(payload)
    found, choices = parse(message)
    assert same(found, payload)
    assert write(found, choices) == message
    assert encode(found) == message
    assert num_bytes(payload) == len(message)


def values(kind, count, rng):
    if kind in ("float32", "float16", "bfloat16"):
        bits = rng.integers(-(2**31), 2**31, count).astype(np.int32)
        width = torch.int32 if kind == "float32" else torch.int16
        return Floats(torch.from_numpy(bits).to(width).view(getattr(torch, kind)))
    if kind == "integers":
        return integers(count, rng)
    if kind == "large":
        return Integers(torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, count) | 1))
    return quantised(int(kind), count, rng)


KINDS = ["float32", "float16", "bfloat16", "integers", "large", "2", "3", "4", "6", "8"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_every_payload_comes_back_to_the_bit(kind, count):
    rng = np.random.default_rng(count)
    some = values(kind, count, rng)
    check(DenseVector(some, 1))
    check(WholeModel(some, 2**32 - 1))
    check(SketchTable(2**40, 1, count, 5, 2**64 - 1, some))
    check(SketchTable(2**40, 1, count, 8, 2**64 - 1, some, 7, "permutation"))
    for dim in {count, count + 1, 2 * count, 70 * count + 1, 2**48}:
        for where in ("random", "front") if dim < 2**20 else ("front",):
            check(SparseUpdate(dim, subset(dim, count, where, rng), some, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_long_payloads(kind):
    rng = np.random.default_rng(1)
    some = values(kind, 150_000, rng)
    check(DenseVector(some))
    check(SparseUpdate(1_000_000, subset(1_000_000, 150_000, "random", rng), some))


@given(st.lists(INT64, max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_integers(numbers):
    check(DenseVector(Integers(torch.tensor(numbers, dtype=torch.int64))))


@given(st.dictionaries(st.integers(0, 299), INT64.filter(bool)), st.integers(300, 2**48))
@settings(max_examples=60, deadline=None)
def test_any_sparse_integers(entries, dim):
    at = sorted(entries)
    check(
        SparseUpdate(
            dim,
            torch.tensor(at, dtype=torch.int64),
            Integers(torch.tensor([entries[i] for i in at], dtype=torch.int64)),
        )
    )


@given(st.data(), st.sampled_from([2, 3, 4, 6, 8]), st.integers(0, 600), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_any_cells(data, bits, count, spread):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    check(DenseVector(quantised(bits, count, rng, spread)))


@given(st.sets(st.integers(0, 5000), max_size=400), st.integers(5001, 100_000))
@settings(max_examples=60, deadline=None)
def test_any_positions(indices, dim):
    at = torch.tensor(sorted(indices), dtype=torch.int64)
    check(SparseUpdate(dim, at, Floats(torch.zeros(len(at), dtype=torch.float16))))


def test_the_number_of_threads_does_not_matter(restore_threads):
    rng = np.random.default_rng(0)
    payload = SparseUpdate(10**6, subset(10**6, 300_000, "random", rng), integers(300_000, rng))
    messages = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        messages.append(encode(payload))
        assert same(decode(messages[-1]), payload)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decode_takes_any_bytes(kind):
    message = one_of_each()["sketch-bfloat16"]
    assert encode(decode(kind(message))) == message


def test_what_is_decoded_does_not_share_memory_with_the_message():
    message = bytearray(encode(DenseVector(Floats(torch.ones(3)))))
    found = decode(message)
    message[HEADER_BYTES:] = bytes(12)
    found.values.values[0] += 1
    assert found.values.values.tolist() == [2, 1, 1]


def test_a_view_with_strides_is_encoded_like_its_copy():
    view = torch.arange(10.0)[::2]
    assert encode(DenseVector(Floats(view))) == encode(DenseVector(Floats(view.clone())))


def test_weights_that_require_gradients_can_be_sent():
    weights = torch.ones(3, requires_grad=True)
    assert encode(WholeModel(Floats(weights))) == encode(WholeModel(Floats(weights.detach())))


F = Floats(torch.zeros(2))
MISTAKES = [
    (lambda: Floats(torch.zeros(2, dtype=torch.float64)), "not torch.float64"),
    (lambda: Floats(torch.zeros(2, 2)), "one dimension"),
    (lambda: Integers(torch.zeros(2)), "takes a tensor of int64, not torch.float32"),
    (lambda: DenseVector(F, -1), "round must be"),
    (lambda: DenseVector(F, 2**32), "round must be"),
    (lambda: SketchTable(5, 2, 3, 1, 0, F), "6 values, not 2"),
    (lambda: SketchTable(5, 1, 2, 1, 2**64, F), "seed must be"),
    (lambda: SketchTable(5, 1, 2, 1, 0, F, 0, "md5"), "one of blocks, permutation, not 'md5'"),
    (lambda: SparseUpdate(5, torch.tensor([1]), F), "1 indices need as many values"),
    (lambda: SparseUpdate(5, torch.tensor([1, 1]), F), "sorted and distinct"),
    (lambda: SparseUpdate(5, torch.tensor([2, 1]), F), "sorted and distinct"),
    (lambda: SparseUpdate(5, torch.tensor([1, 5]), F), "from 0 to 4"),
    (lambda: SparseUpdate(5, torch.tensor([-1, 4]), F), "from 0 to 4"),
    (lambda: SparseUpdate(5, torch.tensor([1.0, 2.0]), F), "int64"),
    (lambda: SparseUpdate(2**48 + 1, torch.tensor([1, 2]), F), "dim must be"),
    (lambda: SparseUpdate(5, torch.arange(2), Integers(torch.tensor([0, 1]))), "leave it out"),
]


@pytest.mark.parametrize(("make", "sentence"), MISTAKES)
def test_a_payload_that_contradicts_itself_gets_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("bits", "scales", "symbols", "sentence"),
    [
        (5, [1.0], [0] * 64, "bits must be"),
        (2, [1.0, 1.0], [0x55] * 64, "1 scales and 64 symbols"),
        (2, [1.0], [0x55] * 63, "1 scales and 64 symbols"),
        (2, [float("inf")], [0x55] * 64, "finite"),
        (2, [float("nan")], [0x55] * 64, "finite"),
        (2, [-1.0], [0x55] * 64, "not negative"),
        (2, [1.001], [0x55] * 64, "bfloat16"),
        (2, [1.0], [0x55] * 63 + [0x57], "from 0 to 2"),
        (4, [1.0], [0x77] * 127 + [0xF7], "from 0 to 14"),
        (2, [1.0], [0x55] * 63 + [0x95], "filled up"),
    ],
)
def test_cells_that_contradict_themselves_get_a_sentence(bits, scales, symbols, sentence):
    cells = Quantised(bits, 200, torch.tensor(scales), torch.tensor(symbols, dtype=torch.uint8))
    with pytest.raises(ValueError, match=sentence):
        encode(DenseVector(cells))
