"""docs/wire.md against the library and against a reader written from the page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_client import reading as oracle
from wire.messages import one_of_each, plain

from fetchsgd.wire import DenseVector, Integers, SparseIntegers, decode, encode
from fetchsgd.wire.codec import parse, write

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
VECTORS = {
    name: (bytes.fromhex(hexadecimal), json.loads(meaning))
    for name, hexadecimal, meaning in re.findall(
        r"^\*\*([^\n]+)\*\*\n\n((?:    [0-9a-f]+\n)+)\n```json\n(.*?)```", PAGE, re.M | re.S
    )
}


def test_the_page_has_a_vector_of_each_format():
    formats = {message[6] for message, _ in VECTORS.values()}
    assert formats >= {1, 2, 3, 4, 5, 0x12, 0x13, 0x28, 0x32, 0x40, 0x51, 0x66}
    assert {message[7] for message, _ in VECTORS.values()} == set(range(6))
    assert {message[5] for message, _ in VECTORS.values()} == set(range(1, 6))


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    message, meaning = VECTORS[name]
    assert oracle.read(message) == meaning
    assert plain(decode(message)) == meaning
    assert write(*parse(message)) == message


def test_the_vector_of_several_segments():
    size, checksum = re.search(r"of (\d+) bytes with checksum\s+`0x([0-9a-f]{8})`", PAGE).groups()
    message = encode(DenseVector(Integers(torch.arange(200_000) ** 2 % 7)))
    assert len(message) == int(size)
    assert message[60:64][::-1].hex() == checksum


def test_the_vector_of_chunks_in_several_segments():
    found = re.search(
        r"integers v\(i\).*?of (\d+) bytes with checksum\s+`0x([0-9a-f]{8})`", PAGE, re.S
    )
    size, checksum = found.groups()
    i = torch.arange(600_000)
    levels = torch.where(i**2 % 1009 < 40, i // 100_000 + 1, 0)
    message = encode(DenseVector(SparseIntegers.from_dense(levels)))
    assert len(message) == int(size)
    assert message[60:64][::-1].hex() == checksum


def test_the_reader_of_the_page_reads_chunks_with_several_tables():
    """More than one page and more than one segment, as far as plain Python has the patience."""
    rng = np.random.default_rng(0)
    levels = torch.zeros(2**18 + 100, dtype=torch.int64)
    for first, size in ((0, 1), (2**16, 9), (2**18, 30)):
        at = torch.from_numpy(first + rng.permutation(5000 if first < 2**18 else 100)[:80])
        levels[at] = torch.from_numpy(size * rng.choice([-1, 1], 80))
    message = encode(DenseVector(SparseIntegers.from_dense(levels)))
    payload, choices = parse(message)
    assert len(choices.values.chunks.values) > 1
    assert oracle.read(message) == plain(payload)


@pytest.mark.parametrize(("name", "message"), one_of_each().items())
def test_the_reader_of_the_page_reads_what_we_write(name, message):
    found, expected = oracle.read(message), plain(decode(message))
    assert repr(found) == repr(expected)  # NaN is not equal to itself
