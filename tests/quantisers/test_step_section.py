"""Levels of one step on the wire: to the bit and back, one form, and nothing but honest bytes."""

import struct

import numpy as np
import pytest
import torch
from awkward import normal
from hypothesis import given
from hypothesis import strategies as st
from wire.messages import same
from wire.test_hostile import check, mended, message

from fetchsgd.quantisers import Step
from fetchsgd.quantisers.step_section import FORMAT, OneStep
from fetchsgd.wire import DenseVector, SketchTable, SparseUpdate, WireError, decode, encode
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.header import DENSE, HEADER_BYTES
from fetchsgd.wire.sparse_integers import SparseIntegers

KEY = 7


def sent(count, tau=1.0, seed=0):
    return Step(tau).round_rows(normal(1, count, seed=seed) ** 3, KEY, torch.tensor([5])).row(0)


def payloads(values):
    count = values.count
    yield DenseVector(values, 3)
    yield SketchTable(2**40, 1, count, 5, 7, values)
    yield SparseUpdate(2 * count + 1, 2 * torch.arange(count), values, 3, 2)


@pytest.mark.parametrize("tau", [0.01, 1.0, 8.0, 1000.0])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 5000, 300_000])
def test_it_travels_in_every_payload(count, tau):
    for payload in payloads(sent(count, tau)):
        data = encode(payload)
        found, choices = parse(data)
        assert same(found, payload)
        assert write(found, choices) == data
        assert found.values.floats().equal(payload.values.floats())


@given(
    levels=st.lists(st.integers(-(2**62), 2**62) | st.just(0), max_size=300),
    step=st.floats(2.0**-100, 2.0**100, width=32),
)
def test_any_levels(levels, step):
    values = OneStep(step, SparseIntegers.from_dense(torch.tensor(levels, dtype=torch.int64)))
    data = encode(DenseVector(values))
    found, choices = parse(data)
    assert same(found.values, values)
    assert write(found, choices) == data


def test_zeros_take_a_few_bytes():
    values = Step().round_rows(torch.zeros(1, 10**6), KEY, torch.tensor([5])).row(0)
    assert values.step == 0
    data = encode(DenseVector(values))
    assert len(data) < HEADER_BYTES + 12
    assert torch.equal(decode(data).values.floats(), torch.zeros(10**6))


@pytest.mark.parametrize("tau", [0.1, 1.0, 8.0])
def test_cut_off_or_longer(tau):
    data = encode(DenseVector(sent(400, tau)))
    for size in range(HEADER_BYTES, len(data)):
        assert not check(mended(data[:size]))
    assert not check(mended(data + b"\0"))


@pytest.mark.parametrize("tau", [0.5, 8.0])
def test_every_bit_flipped(tau):
    """Refused, or read as other numbers in the one form that they have."""
    data = encode(DenseVector(sent(200, tau)))
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        check(mended(bad))


def test_random_bytes():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        section = struct.pack("<f", 1.0) + rng.bytes(rng.integers(0, 200))
        check(message(DENSE, FORMAT, 0, section, dim=300, count=300))


@pytest.mark.parametrize(
    "step", [-1.0, -0.0, float("inf"), float("nan"), -float("inf"), 0.0], ids=str
)
def test_steps_that_no_honest_client_has(step):
    data = encode(DenseVector(sent(200)))
    bad = bytearray(data)
    bad[HEADER_BYTES : HEADER_BYTES + 4] = struct.pack("<f", step)
    sentence = "all levels must be 0" if str(step) == "0.0" else "finite and not negative"
    with pytest.raises(WireError, match=sentence):
        decode(mended(bad))


def test_a_few_bytes_do_not_become_many_numbers():
    section = struct.pack("<f", 1.0) + bytes(100)
    with pytest.raises(WireError):
        decode(message(DENSE, FORMAT, 0, section, dim=2**40, count=2**40))


def test_only_step_reads_it():
    format = sent(200).coding().format
    assert Step().reads(format)
    assert Step(1.0, 1000).reads(format)
    assert not Step().reads(5)
