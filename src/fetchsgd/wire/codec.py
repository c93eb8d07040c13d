"""Payloads as bytes and back: `encode`, `decode` and `num_bytes`. The format is in docs/wire.md.

`decode(encode(payload))` is the payload to the bit, and `write(*parse(message))` is the message to
the bit: apart from the choices of its writer, a payload has one form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fetchsgd.wire import header, integers, positions
from fetchsgd.wire.choices import Choices, choose
from fetchsgd.wire.chunks import Ints, read_sparse, write_sparse
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.header import HEADER_BYTES, Header
from fetchsgd.wire.payloads import (
    DenseVector,
    Payload,
    SketchTable,
    SparseUpdate,
    WholeModel,
    check_every_position,
)
from fetchsgd.wire.reader import Reader
from fetchsgd.wire.sizes import floats_bytes
from fetchsgd.wire.values import (
    INTEGERS,
    Coding,
    Floats,
    Integers,
    Values,
    array_of,
    section_reader,
)

KINDS = {
    DenseVector: header.DENSE,
    SketchTable: header.SKETCH,
    SparseUpdate: header.SPARSE,
    WholeModel: header.MODEL,
}
Message = bytes | bytearray | memoryview
Expect = Callable[[Header], None]


def encode(payload: Payload) -> bytes:
    """A message that holds the payload.

    >>> from fetchsgd.wire import Floats, SparseUpdate
    >>> values = Floats(torch.tensor([1.5, -2.0]))
    >>> message = encode(SparseUpdate(1000, torch.tensor([3, 500]), values, round=7))
    >>> len(message), decode(message).values.floats()
    (75, tensor([ 1.5000, -2.0000]))
    """
    _check_payload("encode", payload)
    return write(payload, choose(payload))


def decode(data: Message, expect: Expect | None = None) -> Payload:
    """The payload of a message; WireError where the bytes are not a message.

    `expect` is given the header once it has been checked, before anything else is read or memory
    for the values is allocated. It may raise MismatchError to refuse the message.
    """
    return parse(data, expect)[0]


def num_bytes(payload: Payload) -> int:
    """`len(encode(payload))`, without encoding where the size does not depend on the values."""
    _check_payload("num_bytes", payload)
    if isinstance(payload.values, Floats) and not isinstance(payload, SparseUpdate):
        return HEADER_BYTES + floats_bytes(payload.values.count, payload.values.values.dtype)
    return len(encode(payload))


def write(payload: Payload, choices: Choices) -> bytes:
    """The message of a payload in the formats and with the frequencies given."""
    kind = KINDS[type(payload)]
    rows = seed = cols = block = since = 0
    dim = payload.values.count
    if isinstance(payload, SketchTable):
        kind = header.SKETCHES[payload.hash]
        dim, rows, seed = payload.dim, payload.rows, payload.seed
        cols, block = payload.cols, payload.block
    if isinstance(payload, SparseUpdate):
        dim, since = payload.dim, payload.since
        sections = _sparse_sections(payload, choices)
    else:
        sections = [payload.values.write(choices.values)]
    head = Header(
        kind, choices.values.format, choices.positions, payload.round,
        rows, dim, seed, cols, block, payload.values.count, since,
    )  # fmt: skip
    return header.write(head, sections)


def parse(data: Message, expect: Expect | None = None) -> tuple[Payload, Choices]:
    """The payload of a message and the choices that its writer made."""
    view = _bytes_of(data)
    head = header.read(view)
    if expect is not None:
        expect(head)
    reader = Reader(view)
    reader.at = HEADER_BYTES
    try:
        found = _read_sparse(reader, head) if head.kind == header.SPARSE else _read(reader, head)
    except WireError:
        raise
    except ValueError as error:  # the sentences of the payloads themselves
        raise WireError(str(error)) from None
    if reader.left:
        raise WireError(f"{reader.left} bytes are left after the last value")
    return found


def _check_payload(function: str, payload: object) -> None:
    if type(payload) not in KINDS:
        *names, last = (kind.__name__ for kind in KINDS)
        raise TypeError(
            f"{function} takes a {', '.join(names)} or {last}, not {type(payload).__name__}"
        )


def _bytes_of(data: Message) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise TypeError(
            "a message is bytes, a bytearray or a memoryview without gaps, not "
            f"{type(data).__name__}"
        ) from None


def _sparse_sections(payload: SparseUpdate, choices: Choices) -> list[bytes]:
    at, dim = array_of(payload.indices), payload.dim
    if choices.positions in (positions.JOINT, positions.CHUNKS):
        assert isinstance(payload.values, Integers)
        values = array_of(payload.values.values)
        if choices.positions == positions.CHUNKS:
            return [write_sparse(at, values, dim, choices.values.chunks)]
        assert choices.values.table is not None
        return [integers.write_joint(at, values, dim, choices.values.table)]
    places = positions.write(at, dim, choices.positions, choices.gap_code)
    return [places, payload.values.write(choices.values)]


def _read(reader: Reader, head: Header) -> tuple[Payload, Choices]:
    values, coding = _read_values(reader, head)
    for hash, number in header.SKETCHES.items():
        if head.kind == number:
            table = head.rows, head.cols, head.block, head.seed
            return SketchTable(head.dim, *table, values, head.round, hash), Choices(coding)
    kind = DenseVector if head.kind == header.DENSE else WholeModel
    return kind(values, head.round), Choices(coding)


def _read_sparse(reader: Reader, head: Header) -> tuple[Payload, Choices]:
    dim, count = head.dim, head.count
    code = None
    if head.positions in (positions.JOINT, positions.CHUNKS):
        at, values, coding = _read_together(reader, head)
    else:
        if head.positions or count not in (0, dim):
            at, code = positions.read(reader, dim, count, head.positions)
        values, coding = _read_values(reader, head)
        if not head.positions:
            if count:
                check_every_position(values)
            at = np.arange(count, dtype=np.int64)
    update = SparseUpdate(dim, torch.from_numpy(at), values, head.round, head.since)
    return update, Choices(coding, head.positions, code)


def _read_together(reader: Reader, head: Header) -> tuple[Ints, Values, Coding]:
    """Positions and integers in one section."""
    if head.values != INTEGERS or not 0 < head.count < head.dim:
        raise WireError("only some integers of a vector have joint positions, or are in chunks")
    if head.positions == positions.JOINT:
        at, array, table = integers.read_joint(reader, head.dim, head.count)
        coding = Coding(INTEGERS, table)
    else:
        at, array, chunks = read_sparse(reader, head.dim, head.count)
        coding = Coding(INTEGERS, chunks=chunks)
    return at, Integers(torch.from_numpy(array)), coding


def _read_values(reader: Reader, head: Header) -> tuple[Values, Coding]:
    values, coding = section_reader(head.values)(reader, head.values, head.count)
    if values.count != head.count:
        raise WireError(f"there are {values.count} values, but the header says {head.count}")
    return values, coding
