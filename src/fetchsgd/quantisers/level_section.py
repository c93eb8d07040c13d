"""Quantised cells as a section of a message: a scale for each run, and symbols, packed or coded.

Symbols of 8 bits are packed as they are. Those of 6 bits (cells of 3 and 6 bits) go four to three
bytes, and the four lie a quarter of a run apart, so that packing moves whole vectors. Entropy-coded
symbols have a table of frequencies: of the symbols or, if these hold several cells, of the cells.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.quantisers.kernels.cpu_loops import all_allowed
from fetchsgd.quantisers.level_layout import (
    BITS,
    CELLS_PER_SYMBOL,
    RUN,
    cells_of_symbols,
    num_levels,
    num_runs,
    num_symbols,
)
from fetchsgd.quantisers.level_sizes import CELL_TOTAL, packed_bytes
from fetchsgd.threads import run_in_order
from fetchsgd.wire import Coding, Reader, WireError, rans
from fetchsgd.wire.rans import SYMBOLS, TOTAL, Frequencies, normalise, read_table, table_bytes
from fetchsgd.wire.reader import number_bytes
from fetchsgd.wire.segments import SEGMENT, assemble, refuse_expansion, skip_padding, spans
from fetchsgd.wire.sizes import stream_bytes

# How symbols are written; the format byte of a message is one of these plus the bits of a cell.
PACKED, EXPLICIT, CELLS = 0x10, 0x20, 0x30
# The bits of bfloat16 infinity; finite numbers that are not negative are below.
INFINITY = 0x7F80

BAD_SCALES = "scales must be finite bfloat16 numbers that are not negative"

Bytes = NDArray[np.uint8]


def check(bits: int, count: int, scales: Tensor, symbols: Tensor) -> None:
    """Refuse invalid cells before they are encoded."""
    if bits not in BITS:
        raise ValueError(f"bits must be one of {BITS}, not {bits}")
    if scales.dtype != torch.float32 or symbols.dtype != torch.uint8:
        raise ValueError("scales must be float32 and symbols uint8")
    runs, length = num_runs(count), num_symbols(count, bits)
    if scales.shape != (runs,) or symbols.shape != (length,):
        raise ValueError(
            f"{count} cells of {bits} bits have {runs} scales and {length} symbols, "
            f"not {tuple(scales.shape)} and {tuple(symbols.shape)}"
        )
    as_bits = scales.cpu().contiguous().view(torch.int32).numpy().view(np.uint32)
    if (as_bits & 0xFFFF).any():
        raise ValueError(BAD_SCALES)
    _check_scales(as_bits >> 16)
    _check_symbols(symbols.cpu().contiguous().numpy(), bits, count, None)


def _check_scales(halves: NDArray[Any]) -> None:
    """The upper halves of floats; those of negative ones are above that of infinity."""
    if halves.max(initial=0) >= INFINITY:
        raise ValueError(BAD_SCALES)


def _check_symbols(
    symbols: Bytes, bits: int, count: int, possible: NDArray[np.bool_] | None
) -> None:
    """possible: those among which all are, if that is known; they are then not looked at."""
    allowed = _allowed(bits)
    known = possible is not None and not (possible & ~allowed).any()
    if not known and not all_allowed(symbols, allowed):
        raise ValueError(f"levels of {bits} bits must be from 0 to {num_levels(bits) - 1}")
    if count % RUN:
        per_symbol = CELLS_PER_SYMBOL[bits]
        last = symbols[-RUN // per_symbol :]
        shifts = bits * np.arange(per_symbol)
        cells = (last >> shifts[:, None] & num_levels(bits)).ravel()
        if (cells[count % RUN :] != num_levels(bits) // 2).any():
            raise ValueError("the last run must be filled up with level 0")


@lru_cache
def _allowed(bits: int) -> NDArray[np.bool_]:
    found = np.zeros(SYMBOLS, dtype=np.bool_)
    found[cells_of_symbols(bits)[0]] = True
    return found


def best_coding(bits: int, count: int, symbols: Tensor) -> Coding:
    """The coding that makes the smallest section, judged by the counts of symbols."""
    counts = rans.histogram(symbols.cpu().contiguous().numpy())
    best, smallest = Coding(PACKED + bits), float(packed_bytes(bits, count))
    if count == 0:
        return best
    tables = {EXPLICIT: normalise(counts, TOTAL)}
    if CELLS_PER_SYMBOL[bits] > 1:
        tables[CELLS] = normalise(cell_counts(counts, bits), CELL_TOTAL)
    for form, table in tables.items():
        model = symbol_model(table, bits, form)
        overhead = 2 * num_runs(count) + len(table_bytes(table))
        size = overhead + float(stream_bytes(int(counts.sum()), torch.tensor(model.bits(counts))))
        if size < smallest:
            best, smallest = Coding(form + bits, table), size
    return best


def cell_counts(counts: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """How often each level occurs, from how often each symbol does."""
    symbols, cells = cells_of_symbols(bits)
    found = np.zeros(num_levels(bits), dtype=np.int64)
    for column in cells.T:
        np.add.at(found, column, counts[symbols])
    return found


def symbol_model(table: Frequencies, bits: int, form: int) -> rans.Model:
    return rans.Model(table if form == EXPLICIT else product_frequencies(table, bits))


def product_frequencies(cell_frequencies: Frequencies, bits: int) -> Frequencies:
    """Frequencies of symbols whose cells are independent.

    Of the 2^14, every symbol that can occur gets 1; the rest is dealt out by rounding the running
    sum of the products down.
    """
    symbols, cells = cells_of_symbols(bits)
    products = cell_frequencies[cells].prod(axis=1)
    used = products > 0
    sums = np.concatenate([[0], np.cumsum(products[used])])
    starts = np.arange(len(sums)) + (TOTAL - len(sums) + 1) * sums // sums[-1]
    found = np.zeros(SYMBOLS, dtype=np.int64)
    found[symbols[used]] = np.diff(starts)
    return found


def write(bits: int, scales: Tensor, symbols: Tensor, coding: Coding) -> bytes:
    """Scales, then symbols."""
    halves = (scales.cpu().contiguous().view(torch.int32).numpy() >> 16).astype("<u2")
    array = symbols.cpu().contiguous().numpy()
    form = coding.format & 0xF0
    if form == PACKED:
        return halves.tobytes() + _pack(array, bits)
    assert coding.table is not None
    model = symbol_model(coding.table, bits, form)
    return halves.tobytes() + table_bytes(coding.table) + _write_symbols(array, model)


def read(reader: Reader, format: int, count: int) -> tuple[int, Tensor, Tensor, Coding]:
    """Bits, scales and symbols of `count` cells, checked, and how they were written."""
    form, bits = format & 0xF0, format & 0x0F
    if bits not in BITS or (form == CELLS and CELLS_PER_SYMBOL[bits] == 1):
        raise WireError(f"there are no cells of {bits} bits in format {form:#x}")
    runs = num_runs(count)
    halves = np.frombuffer(reader.take(2 * runs, "scales"), dtype="<u2")
    _check_scales(halves)
    table, possible = None, None
    if form == PACKED:
        array = _unpack(reader.take(32 * bits * runs, "packed cells"), bits)
    else:
        n = num_symbols(count, bits)
        refuse_expansion(reader, reader.at, n)
        shape = (SYMBOLS, TOTAL) if form == EXPLICIT else (num_levels(bits), CELL_TOTAL)
        table = read_table(reader, *shape)
        model = symbol_model(table, bits, form)
        array, possible = _read_symbols(reader, n, model), model.frequencies > 0
    _check_symbols(array, bits, count, possible)
    scales = torch.from_numpy(halves.astype(np.int32) << 16).view(torch.float32)
    return bits, scales, torch.from_numpy(array), Coding(format, table)


def _pack(symbols: Bytes, bits: int) -> bytes:
    if bits not in (3, 6):
        return symbols.tobytes()
    # (runs, which of the four, place in the quarter)
    s = symbols.reshape(-1, 4, RUN // CELLS_PER_SYMBOL[bits] // 4)
    s0, s1, s2, s3 = (s[:, i] for i in range(4))
    return np.stack([s0 | s1 << 6, s1 >> 2 | s2 << 4, s2 >> 4 | s3 << 2], axis=1).tobytes()


def _unpack(data: memoryview, bits: int) -> Bytes:
    packed = np.frombuffer(data, dtype=np.uint8)
    if bits not in (3, 6):
        return packed.copy()
    b = packed.reshape(-1, 3, RUN // CELLS_PER_SYMBOL[bits] // 4)
    b0, b1, b2 = (b[:, i] for i in range(3))
    parts = [b0 & 63, b0 >> 6 | (b1 & 15) << 2, b1 >> 4 | (b2 & 3) << 4, b2 >> 2]
    return np.stack(parts, axis=1).ravel()


def _write_symbols(symbols: Bytes, model: rans.Model) -> bytes:
    def segment(span: tuple[int, int]) -> bytes:
        return rans.encode(symbols[slice(*span)], model)

    parts = list(run_in_order(segment, spans(len(symbols)), len(symbols)))
    return assemble(b"".join(number_bytes(len(p)) for p in parts), parts, len(symbols))


def _read_symbols(reader: Reader, count: int, model: rans.Model) -> Bytes:
    start = reader.at
    refuse_expansion(reader, start, count)
    stretches = spans(count)
    sizes = []
    for first, last in stretches:
        sizes.append(reader.number("the size of a segment", rans.most_bytes(last - first)))
        rans.check_size(sizes[-1], last - first)
    first = reader.at
    for size in sizes:
        reader.take(size, "a segment")
    segments = rans.Segments(reader.data[first : reader.at], sizes, SEGMENT)
    skip_padding(reader, start, count)
    out = np.empty(count, dtype=np.uint8)
    # Two are decoded at once; one thread takes them all in one go.
    each = 2 if torch.get_num_threads() > 1 else max(len(sizes), 1)

    def some(first: int) -> None:
        segments.decode_into(out, first, min(first + each, len(sizes)), model)

    list(run_in_order(some, range(0, len(sizes), each), count))
    return out
