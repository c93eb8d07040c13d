"""docs/wire.md against the library and against a reader written from the page."""

import json
import re
from pathlib import Path

import pytest
import torch
from wire import oracle
from wire.messages import one_of_each, plain

from fetchsgd.wire import DenseVector, Integers, decode, encode
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
    assert formats >= {1, 2, 3, 4, 5, 0x12, 0x13, 0x28, 0x32, 0x40, 0x51}
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


@pytest.mark.parametrize(("name", "message"), one_of_each().items())
def test_the_reader_of_the_page_reads_what_we_write(name, message):
    found, expected = oracle.read(message), plain(decode(message))
    assert repr(found) == repr(expected)  # NaN is not equal to itself
