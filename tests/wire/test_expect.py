"""A receiver that knows what it expects sees the header before anything is read or allocated."""

import tracemalloc

import pytest
import torch

from fetchsgd.wire import (
    DenseVector,
    Floats,
    Integers,
    MismatchError,
    SketchTable,
    SparseUpdate,
    WireError,
    decode,
    encode,
)
from fetchsgd.wire.header import checksum_of

TABLE = SketchTable(9, 1, 3, 2, 5, Floats(torch.zeros(3)), round=4)


def refuse(header):
    raise MismatchError("shape", f"{header.count} values came, 3 were expected")


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_message_that_expands_is_refused_without_its_memory():
    """Symbols that cost nothing: 1.8 MB of them once took 451 MB before they were refused."""
    message = encode(DenseVector(Integers(torch.ones(2_000_000, dtype=torch.int64))))
    assert len(message) < 70_000

    def refused():
        with pytest.raises(MismatchError, match="2000000 values came, 3 were expected"):
            decode(message, refuse)

    decode(message)
    assert peak_of(refused) < 50_000
    assert peak_of(lambda: decode(message)) > 2_000_000 * 8


def test_the_header_says_what_the_payload_is():
    seen = []
    decode(encode(TABLE), seen.append)
    (header,) = seen
    for name in ("dim", "rows", "cols", "block", "seed", "round"):
        assert getattr(header, name) == getattr(TABLE, name)
    assert (header.count, header.values, header.positions, header.since) == (3, 1, 0, 0)
    update = SparseUpdate(9, torch.tensor([2]), Floats(torch.ones(1)), round=4, since=3)
    decode(encode(update), seen.append)
    assert (seen[1].count, seen[1].dim, seen[1].since) == (1, 9, 3)


def test_nothing_is_read_before_the_header_is_accepted():
    """Of a section that cannot be read, the mismatch is what is reported."""
    message = bytearray(encode(TABLE))
    message[6] = 0xF9
    message[60:64] = checksum_of(message).to_bytes(4, "little")
    with pytest.raises(WireError, match="no values format 0xf9"):
        decode(message)
    with pytest.raises(MismatchError):
        decode(message, refuse)


def test_a_damaged_message_is_never_shown():
    message = bytearray(encode(TABLE))
    message[-1] ^= 1
    with pytest.raises(WireError, match="checksum"):
        decode(message, lambda _: pytest.fail("a header of a damaged message was shown"))


def test_a_mismatch_is_a_wire_error_with_a_reason():
    with pytest.raises(WireError, match="came") as caught:
        decode(encode(TABLE), refuse)
    assert caught.value.reason == "shape"
