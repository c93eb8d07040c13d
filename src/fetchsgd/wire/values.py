"""The numbers in a payload, and how they become a section of a message.

Floats and integers are defined here. All other kinds come from quantisers: objects that satisfy
`Values`, and a function that reads them back, registered under the format bytes that they write.
The package's own are found by name when such a message comes; formats 0xF0 to 0xFF are for
quantisers outside the package, which call `register_section` when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.wire import integers, rans
from fetchsgd.wire.chunks import ChunkCode
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.rans import TOTAL, Frequencies
from fetchsgd.wire.reader import Reader
from fetchsgd.wire.sizes import floats_bytes, integer_bytes

FLOAT_FORMATS = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
FLOAT_TYPES = {format: dtype for dtype, format in FLOAT_FORMATS.items()}
INTEGERS = 4
OUTSIDE = range(0xF0, 0x100)
# numpy has no bfloat16, and a NaN must keep its bits, so floats travel as integers of their size.
AS_INTEGERS: dict[int, tuple[torch.dtype, np.dtype[Any]]] = {
    2: (torch.int16, np.dtype("<i2")),
    4: (torch.int32, np.dtype("<i4")),
}


@dataclass(frozen=True, eq=False)
class Coding:
    """How values are written: the format byte and, if they are entropy-coded, a table for them."""

    format: int
    table: Frequencies | None = None
    chunks: ChunkCode | None = None  # of sparse integers


@runtime_checkable
class Values(Protocol):
    """Numbers that a payload can hold."""

    @property
    def count(self) -> int: ...

    def floats(self) -> Float32[Tensor, " count"]:
        """The numbers as the receiver uses them."""
        ...

    def section_bytes(self) -> float:
        """About `len(self.write(self.coding()))`, as a simulation would count it."""
        ...

    def coding(self) -> Coding:
        """The coding that makes the section smallest; ValueError if the values are not valid."""
        ...

    def write(self, coding: Coding) -> bytes:
        """The section. The same values in the same coding always give the same bytes."""
        ...


@dataclass(frozen=True, eq=False)
class Floats:
    """Numbers as they are: float32, float16 or bfloat16."""

    values: Float[Tensor, " count"]

    def __post_init__(self) -> None:
        allowed = "Floats takes a tensor of float32, float16 or bfloat16"
        _check_vector(self.values, tuple(FLOAT_FORMATS), allowed)

    @property
    def count(self) -> int:
        return len(self.values)

    def floats(self) -> Float32[Tensor, " count"]:
        return self.values.float()

    def section_bytes(self) -> float:
        return float(floats_bytes(self.count, self.values.dtype))

    def coding(self) -> Coding:
        return Coding(FLOAT_FORMATS[self.values.dtype])

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        integer, little = AS_INTEGERS[self.values.element_size()]
        bits = self.values.detach().contiguous().view(integer)
        return array_of(bits).astype(little).tobytes()


@dataclass(frozen=True, eq=False)
class Integers:
    """Whole numbers; small ones take few bits."""

    values: Int64[Tensor, " count"]

    def __post_init__(self) -> None:
        _check_vector(self.values, (torch.int64,), "Integers takes a tensor of int64")

    @property
    def count(self) -> int:
        return len(self.values)

    def floats(self) -> Float32[Tensor, " count"]:
        return self.values.float()

    def section_bytes(self) -> float:
        return float(integer_bytes(torch.from_numpy(self.symbol_counts())[None])[0])

    def coding(self) -> Coding:
        return Coding(INTEGERS, table_for(self.symbol_counts()))

    def write(self, coding: Coding) -> bytes:
        array = array_of(self.values)
        return b"" if coding.table is None else integers.write(array, coding.table)

    def symbol_counts(self) -> NDArray[np.int64]:
        """How often each bucket symbol occurs (integers.py)."""
        return rans.histogram(integers.symbols_of(array_of(self.values)))


def table_for(counts: NDArray[np.int64]) -> Frequencies | None:
    """Frequencies for symbols with these counts; none if all counts are 0."""
    return rans.normalise(counts, TOTAL) if counts.any() else None


def array_of(values: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = values.cpu().contiguous().numpy()
    return found


def _check_vector(values: object, dtypes: tuple[torch.dtype, ...], allowed: str) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"{allowed}, not {type(values).__name__}")
    if values.dtype not in dtypes:
        raise ValueError(f"{allowed}, not {values.dtype}")
    if values.ndim != 1:
        raise ValueError(f"values must have one dimension, not shape {tuple(values.shape)}")


# From a reader at the start of a section, its format and its number of values to what it holds.
ReadSection = Callable[[Reader, int, int], tuple[Values, Coding]]


def register_section(format: int, read: ReadSection) -> None:
    """Read values of this format by this function.

    It must raise WireError for bytes that `write` would not give, and check that there are enough
    bytes before it allocates memory for `count` values.
    """
    if format not in OUTSIDE and _HOMES.get(format >> 4) != read.__module__:
        raise ValueError(
            f"values format {format:#x} is not free: quantisers outside the package take one from "
            f"{OUTSIDE[0]:#x} to {OUTSIDE[-1]:#x}"
        )
    other = _READERS.get(format, read)
    # A module that is loaded again, as in a notebook, may replace its own.
    if _name(other) != _name(read):
        raise ValueError(f"values format {format:#x} is taken by {_name(other)}")
    _READERS[format] = read


def section_reader(format: int) -> ReadSection:
    """The function that reads values of this format."""
    if format not in _READERS and format >> 4 in _HOMES:
        import_module(_HOMES[format >> 4])
    if format not in _READERS:
        hint = ": import the quantiser that writes it" if format in OUTSIDE else ""
        raise WireError(f"there is no values format {format:#x}{hint}")
    return _READERS[format]


def _name(read: ReadSection) -> str:
    return f"{read.__module__}.{read.__qualname__}"


def _read_floats(reader: Reader, format: int, count: int) -> tuple[Floats, Coding]:
    dtype = FLOAT_TYPES[format]
    size = floats_bytes(1, dtype)
    integer, little = AS_INTEGERS[size]
    data = np.frombuffer(reader.take(count * size, "floats"), dtype=little)
    native = data.astype(little.newbyteorder("="))
    return Floats(torch.from_numpy(native).view(integer).view(dtype)), Coding(format)


def _read_integers(reader: Reader, format: int, count: int) -> tuple[Integers, Coding]:
    if count == 0:
        return Integers(torch.empty(0, dtype=torch.int64)), Coding(format)
    array, table = integers.read(reader, count)
    return Integers(torch.from_numpy(array)), Coding(format, table)


_READERS: dict[int, ReadSection] = {
    INTEGERS: _read_integers,
    **dict.fromkeys(FLOAT_TYPES, _read_floats),
}
# Modules that register the formats with this upper half: imported when such a message comes.
_HOMES = dict.fromkeys((0x1, 0x2, 0x3), "fetchsgd.quantisers.levels")
_HOMES[0x0] = "fetchsgd.wire.sparse_integers"
_HOMES |= {0x4: "fetchsgd.quantisers.step_section", 0x5: "fetchsgd.quantisers.eden_section"}
_HOMES |= {0x6: "fetchsgd.sums.residues", 0x7: "fetchsgd.quantisers.two_bits"}
