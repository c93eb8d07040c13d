"""Payloads as bytes and back: `encode`, `decode` and `num_bytes`. The format is in docs/wire.md.

`decode(encode(payload))` is the payload to the bit, and `write(*parse(message))` is the message to
the bit: apart from the choices of its writer, a payload has one form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.quantisers import cells
from fetchsgd.quantisers.levels import Quantised
from fetchsgd.wire import header, integers, positions
from fetchsgd.wire.choices import FLOAT_FORMATS, INTEGERS, Choices, choose
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.frequencies import Frequencies
from fetchsgd.wire.header import HEADER_BYTES, Header
from fetchsgd.wire.payloads import (
    DenseVector,
    Floats,
    Integers,
    Payload,
    SketchTable,
    SparseUpdate,
    Values,
    WholeModel,
    count_of,
)
from fetchsgd.wire.reader import Reader
from fetchsgd.wire.sizes import floats_bytes

FLOAT_TYPES = {format: dtype for dtype, format in FLOAT_FORMATS.items()}
# numpy has no bfloat16, and a NaN must keep its bits, so floats travel as integers of their size.
AS_INTEGERS: dict[int, tuple[torch.dtype, np.dtype[Any]]] = {
    2: (torch.int16, np.dtype("<i2")),
    4: (torch.int32, np.dtype("<i4")),
}
KINDS = {
    DenseVector: header.DENSE,
    SketchTable: header.SKETCH,
    SparseUpdate: header.SPARSE,
    WholeModel: header.MODEL,
}


def encode(payload: Payload) -> bytes:
    """A message that holds the payload."""
    if isinstance(payload.values, Quantised):
        cells.check(payload.values)
    return write(payload, choose(payload))


def decode(data: bytes | bytearray | memoryview) -> Payload:
    """The payload of a message; WireError where the bytes are not a message."""
    return parse(data)[0]


def num_bytes(payload: Payload) -> int:
    """`len(encode(payload))`, without encoding where the size does not depend on the values."""
    if isinstance(payload.values, Floats) and not isinstance(payload, SparseUpdate):
        return HEADER_BYTES + floats_bytes(count_of(payload.values), payload.values.values.dtype)
    return len(encode(payload))


def write(payload: Payload, choices: Choices) -> bytes:
    """The message of a payload in the formats and with the frequencies given."""
    count = count_of(payload.values)
    sketch = (0, 0, 0, 0)
    dim, since = count, 0
    sections = []
    if isinstance(payload, SketchTable):
        dim, sketch = payload.dim, (payload.rows, payload.seed, payload.cols, payload.block)
    if isinstance(payload, SparseUpdate):
        dim, since = payload.dim, payload.since
    if isinstance(payload, SparseUpdate) and choices.positions == positions.JOINT:
        assert isinstance(payload.values, Integers)
        assert choices.table is not None
        pair = _array(payload.indices), _array(payload.values.values)
        sections.append(integers.write_joint(*pair, dim, choices.table))
    else:
        if isinstance(payload, SparseUpdate):
            at = _array(payload.indices)
            sections.append(positions.write(at, dim, choices.positions, choices.gap_code))
        sections.append(_write_values(payload.values, choices))
    rows, seed, cols, block = sketch
    head = Header(
        KINDS[type(payload)], choices.values, choices.positions, payload.round,
        rows, dim, seed, cols, block, count, since,
    )  # fmt: skip
    return header.write(head, sections)


def parse(data: bytes | bytearray | memoryview) -> tuple[Payload, Choices]:
    """The payload of a message and the choices that its writer made."""
    view = memoryview(data).cast("B")
    head = header.read(view)
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


def _read(reader: Reader, head: Header) -> tuple[Payload, Choices]:
    values, choices = _read_values(reader, head)
    if head.kind == header.SKETCH:
        table = head.rows, head.cols, head.block, head.seed
        return SketchTable(head.dim, *table, values, head.round), choices
    kind = DenseVector if head.kind == header.DENSE else WholeModel
    return kind(values, head.round), choices


def _read_sparse(reader: Reader, head: Header) -> tuple[Payload, Choices]:
    dim, count = head.dim, head.count
    code = None
    if head.positions == positions.JOINT:
        if head.values != INTEGERS or not 0 < count < dim:
            raise WireError("only some integers of a vector have joint positions")
        at, array, table = integers.read_joint(reader, dim, count)
        values: Values = Integers(torch.from_numpy(array))
        choices = Choices(INTEGERS, table)
    else:
        if head.positions or count not in (0, dim):
            at, code = positions.read(reader, dim, count, head.positions)
        values, choices = _read_values(reader, head)
        if not head.positions:
            at = np.arange(count, dtype=np.int64)
    choices = Choices(choices.values, choices.table, head.positions, code)
    return SparseUpdate(dim, torch.from_numpy(at), values, head.round, head.since), choices


def _write_values(values: Values, choices: Choices) -> bytes:
    if isinstance(values, Quantised):
        return cells.write(values, choices.values & 0xF0, choices.table)
    if isinstance(values, Floats):
        integer, little = AS_INTEGERS[values.values.element_size()]
        bits = values.values.detach().contiguous().view(integer)
        return _array(bits).astype(little).tobytes()
    array = _array(values.values)
    return b"" if choices.table is None else integers.write(array, choices.table)


def _read_values(reader: Reader, head: Header) -> tuple[Values, Choices]:
    format = head.values
    if format in FLOAT_TYPES:
        return _read_floats(reader, head.count, FLOAT_TYPES[format]), Choices(format)
    table: Frequencies | None = None
    if format == INTEGERS:
        if head.count == 0:
            return Integers(torch.empty(0, dtype=torch.int64)), Choices(format)
        array, table = integers.read(reader, head.count)
        return Integers(torch.from_numpy(array)), Choices(format, table)
    form, bits = format & 0xF0, format & 0x0F
    if form not in (cells.PACKED, cells.EXPLICIT, cells.CELLS):
        raise WireError(f"there is no values format {format:#x}")
    found, table = cells.read(reader, bits, head.count, form)
    return found, Choices(format, table)


def _read_floats(reader: Reader, count: int, dtype: torch.dtype) -> Floats:
    size = floats_bytes(1, dtype)
    integer, little = AS_INTEGERS[size]
    data = np.frombuffer(reader.take(count * size, "floats"), dtype=little)
    native = data.astype(little.newbyteorder("="))
    return Floats(torch.from_numpy(native).view(integer).view(dtype))


def _array(values: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = values.cpu().contiguous().numpy()
    return found
