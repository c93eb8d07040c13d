"""Whatever the bytes are: WireError, soon, and without much memory."""

import struct
import tracemalloc

import numpy as np
import pytest
import torch
from wire.messages import integers, one_of_each, quantised, subset

from fetchsgd.wire import (
    DenseVector,
    Floats,
    Integers,
    SketchTable,
    SparseIntegers,
    SparseUpdate,
    WireError,
    decode,
    encode,
)
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.header import HEADER_BYTES, Header, checksum_of
from fetchsgd.wire.header import write as header_write

MESSAGES = one_of_each()
MOST_PER_BYTE = 600
MOST_BEYOND = 2_000_000


def mended(message):
    """Length and checksum put right, so that a mistake is found where it is."""
    found = bytearray(message)
    found[48:56] = struct.pack("<Q", len(found))
    found[60:64] = struct.pack("<I", checksum_of(found))
    return bytes(found)


def check(message):
    """Refused, or in the one form that its payload and choices have."""
    try:
        found = parse(message)
    except WireError:
        return False
    assert write(*found) == message
    return True


def message(kind, values, positions, sections=b"", **fields):
    zero = dict.fromkeys(["round", "rows", "dim", "seed", "cols", "block", "count"], 0)
    return header_write(Header(kind, values, positions, **zero | fields), [sections])


@pytest.mark.parametrize("name", MESSAGES)
def test_cut_off_at_every_byte(name):
    for size in range(len(MESSAGES[name])):
        with pytest.raises(WireError):
            decode(MESSAGES[name][:size])
        if size >= HEADER_BYTES:
            assert not check(mended(MESSAGES[name][:size]))


@pytest.mark.parametrize("name", MESSAGES)
def test_every_bit_flipped(name):
    original = MESSAGES[name]
    for bit in range(8 * len(original)):
        bad = bytearray(original)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode(bad)
        check(mended(bad))


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_too_many(name):
    with pytest.raises(WireError, match="too long"):
        decode(MESSAGES[name] + b"\0")
    assert not check(mended(MESSAGES[name] + b"\0"))


def test_random_bytes():
    rng = np.random.default_rng(0)
    names = list(MESSAGES)
    for _ in range(2000):
        noise = rng.bytes(rng.integers(0, 300))
        with pytest.raises(WireError):
            decode(noise)
        head = MESSAGES[names[rng.integers(len(names))]][:HEADER_BYTES]
        check(mended(head + noise))


def test_damage_in_long_messages():
    """Several segments on several threads, some with four lanes."""
    rng = np.random.default_rng(0)
    at = subset(10**6, 150_000, "random", rng)
    longer = [
        DenseVector(quantised(2, 300_000, rng, 0.4)),
        DenseVector(integers(150_000, rng, 1000)),
        SparseUpdate(10**6, at, Integers(torch.ones(150_000, dtype=torch.int64))),
        SparseUpdate(10**6, at, Floats(torch.zeros(150_000).half())),
        DenseVector(SparseIntegers(10**6, at, integers(150_000, rng, 2).values)),
    ]
    for payload in longer:
        original = encode(payload)
        assert check(original)
        for _ in range(15):
            bad = bytearray(original)
            # Directories and parameters are at the beginning, where little helps to find mistakes.
            where = rng.integers(
                HEADER_BYTES, HEADER_BYTES + 60 if rng.random() < 0.5 else len(bad)
            )
            bad[where] = rng.integers(256)
            check(mended(bad))


SENTENCES = {
    "at least 64 bytes, this one 0": b"",
    "at least 64 bytes, this one 63": MESSAGES["dense-float32"][:63],
    "begins with b'JFIF'": b"JFIF" + MESSAGES["dense-float32"][4:],
    "version 9 of .* and this side speaks version 1": b"FSGW\x09" + MESSAGES["dense-float32"][5:],
    "cut off: 75 bytes, where it says 76": MESSAGES["dense-float32"][:75],
    "checksum is wrong": MESSAGES["dense-float32"][:75] + b"\x01",
    "no kind 6": message(6, 1, 0),
    "a table of 3 x 2 cells cannot have 5": message(5, 1, 0, rows=3, cols=2, count=5),
    "no values format 0x9": message(1, 9, 0),
    "no values format 0x45": message(1, 0x45, 0),
    "no cells of 5 bits": message(1, 0x15, 0),
    "no cells of 8 bits in format 0x30": message(1, 0x38, 0),
    "unless the message is a sketch": message(1, 1, 0, block=1),
    "a table of 2 x 3 cells cannot have 5": message(2, 1, 0, rows=2, cols=3, count=5),
    "only a sparse update has positions": message(1, 1, 1),
    "and a version that it changes": message(1, 1, 0, since=1),
    "since must be from 0 to 0": message(3, 1, 0, since=1),
    "dim is 3, but there are 2": message(1, 1, 0, dim=3, count=2),
    "cannot be distinct": message(3, 1, 0, dim=2, count=3),
    "no positions format 7": message(3, 1, 7, dim=4, count=3),
    "format 0 does not go with 3 of 4": message(3, 1, 0, dim=4, count=3),
    "format 1 does not go with 4 of 4": message(3, 1, 1, dim=4, count=4),
    "joint": message(3, 1, 4, dim=4, count=3),
    "bits beyond the last": message(3, 1, 1, b"\x17", dim=4, count=3),
    "has 2 positions, but the header says 3": message(3, 1, 1, b"\3", dim=4, count=3),
    "at most 256": message(3, 1, 2, bytes(99), dim=1000, count=257),
    "lead to dim 1000": message(3, 1, 2, b"\xff" * 99, dim=1000, count=3),
    "bits that are not zero": message(3, 1, 2, b"\x01\xf0" + bytes(4), dim=1000, count=1),
    "shift 49": message(3, 1, 3, b"\x31\1\0\1", dim=1000, count=1),
    "escape 0": message(3, 1, 3, b"\1\0\0\1", dim=1000, count=1),
    "some symbol of a gap has no frequency": message(3, 1, 3, b"\1\xff\1\0", dim=9, count=1),
    "must be finite": message(1, 0x18, 0, b"\x80\x7f" + bytes(256), dim=1, count=1),
    "not negative": message(1, 0x18, 0, b"\x00\x80" + bytes(256), dim=1, count=1),
    "from 0 to 254": message(1, 0x18, 0, bytes(2) + b"\xff" * 256, dim=256, count=256),
    "filled up with level 0": message(1, 0x18, 0, bytes(258), dim=255, count=255),
    "leave it out": message(3, 4, 0, b"\x80\x80\x01\x04\x00\x00\x00\x01\x00", dim=1, count=1),
    "cannot have 3 bytes": message(1, 4, 0, b"\x80\x80\x01\x03\x00\x00\x00\x01", dim=1, count=1),
    "cannot have 2 bytes": message(1, 4, 0, b"\x80\x80\x01\x02\x00\x00\x01", dim=1, count=1),
    "padding": message(
        1, 4, 0, b"\x80\x80\x01\x04\x00\x00\x00\x01\x00\0\0\0\0\1", dim=352, count=352
    ),
    "have no positions": message(3, 5, 0, b"\0", dim=9, count=9),
    "1 bytes are left": message(1, 1, 0, b"\0"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences(sentence):
    with pytest.raises(WireError, match=sentence):
        decode(SENTENCES[sentence])


HUGE = [2**20, 2**40, 2**48, 2**60, 2**64 - 1]
CODED = [1, 2, 3, 4, 5, *(form + bits for form in (0x10, 0x20, 0x30) for bits in (2, 3, 4, 6, 8))]


# Kind, positions, and how many values fewer than dim.
CASES = [(1, 0, 0), (3, 0, 0), *((3, form, 1) for form in (1, 3, 4, 5))]


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize(
    "body", [bytes(0), bytes(300), b"\x80\x80\x01" + bytes(300), b"\xff" * 300]
)
def test_a_header_that_claims_much_allocates_little(count, body):
    tracemalloc.start()
    try:
        for values in CODED:
            for kind, positions, few in CASES:
                with pytest.raises(WireError):
                    decode(message(kind, values, positions, body, dim=count, count=count - few))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BEYOND


def expanding():
    """The messages with the largest payloads for their size: symbols that cost nothing."""
    n = 4_000_000
    ones = Integers(torch.ones(n, dtype=torch.int64))
    rng = np.random.default_rng(0)
    return {
        "integers": DenseVector(ones),
        "every position": SparseUpdate(n, torch.arange(n), ones),
        "joint": SparseUpdate(n + 1, torch.arange(n), ones),
        "chunks": DenseVector(SparseIntegers(n + 1, torch.arange(n), ones.values)),
        "gaps": SparseUpdate(n + 1, torch.arange(n), quantised(2, n, rng, 0)),
        "cells": SketchTable(n, 1, n, 1, 0, quantised(2, n, rng, 0)),
    }


@pytest.mark.parametrize("name", expanding())
def test_at_most_so_many_bytes_for_each_byte_of_a_message(name):
    data = encode(expanding()[name])
    tracemalloc.start()
    try:
        decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Each of torch's masks over the entries takes a byte an entry, and tracemalloc does not see it.
    masks = 2 * 4_000_000 if "gaps" not in name else 4_000_000
    assert peak + masks < MOST_PER_BYTE * len(data) + MOST_BEYOND


def test_zeros_in_chunks_take_no_memory():
    nothing = torch.arange(0)
    few = torch.arange(0, 2**28, 2**18)
    for at in (nothing, few):
        data = encode(DenseVector(SparseIntegers(2**28, at, torch.ones_like(at))))
        tracemalloc.start()
        try:
            found = decode(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.values.indices.equal(at)
        assert peak < MOST_PER_BYTE * len(data) + MOST_BEYOND
