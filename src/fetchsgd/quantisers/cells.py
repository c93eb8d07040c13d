"""Quantised cells as bytes: a scale for each run, and symbols, packed or entropy-coded.

Symbols of 8 bits are packed as they are. Those of 6 bits (for 3 and 6 bits a cell) go four to three
bytes, and the four lie a quarter of a run apart, so that packing moves whole vectors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fetchsgd.quantisers.levels import BITS, CELLS_PER_SYMBOL, RUN, Quantised, num_runs
from fetchsgd.threads import run_in_order
from fetchsgd.wire import rans
from fetchsgd.wire.bit_loops import all_allowed
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.frequencies import (
    CELL_TOTAL,
    SYMBOLS,
    TOTAL,
    Frequencies,
    cells_of_symbols,
    levels,
    product_frequencies,
    read_table,
    table_bytes,
)
from fetchsgd.wire.reader import Reader, number_bytes
from fetchsgd.wire.segments import assemble, refuse_expansion, skip_padding, spans

# How symbols are written; the format byte of a message is one of these plus the bits of a cell.
PACKED, EXPLICIT, CELLS = 0x10, 0x20, 0x30
# The bits of bfloat16 infinity; finite numbers that are not negative are below.
INFINITY = 0x7F80

Bytes = NDArray[np.uint8]


def check(cells: Quantised) -> None:
    """Refuse cells that are not what they say: for `encode`, and after decoding."""
    if cells.bits not in BITS:
        raise ValueError(f"bits must be one of {BITS}, not {cells.bits}")
    runs = num_runs(cells.count)
    symbols = runs * RUN // CELLS_PER_SYMBOL[cells.bits]
    if cells.scales.dtype != torch.float32 or cells.symbols.dtype != torch.uint8:
        raise ValueError("scales must be float32 and symbols uint8")
    if cells.scales.shape != (runs,) or cells.symbols.shape != (symbols,):
        raise ValueError(
            f"{cells.count} cells of {cells.bits} bits have {runs} scales and {symbols} symbols, "
            f"not {tuple(cells.scales.shape)} and {tuple(cells.symbols.shape)}"
        )
    _check_scales(cells.scales)
    _check_symbols(cells.symbols.cpu().contiguous().numpy(), cells.bits, cells.count)


def _check_scales(scales: torch.Tensor) -> None:
    bits = scales.contiguous().view(torch.int32)
    if bool(((bits < 0) | (bits >= INFINITY << 16) | (bits & 0xFFFF != 0)).any()):
        raise ValueError("scales must be finite bfloat16 numbers that are not negative")


def _check_symbols(symbols: Bytes, bits: int, count: int) -> None:
    if not all_allowed(symbols, _allowed(bits)):
        raise ValueError(f"levels of {bits} bits must be from 0 to {levels(bits) - 1}")
    if count % RUN:
        per_symbol = CELLS_PER_SYMBOL[bits]
        last = symbols[-RUN // per_symbol :]
        shifts = bits * np.arange(per_symbol)
        cells = (last >> shifts[:, None] & levels(bits)).ravel()
        if (cells[count % RUN :] != levels(bits) // 2).any():
            raise ValueError("the last run must be filled up with level 0")


@lru_cache
def _allowed(bits: int) -> NDArray[np.bool_]:
    found = np.zeros(SYMBOLS, dtype=np.bool_)
    found[cells_of_symbols(bits)[0]] = True
    return found


def write(cells: Quantised, format: int, table: Frequencies | None) -> bytes:
    """Scales, then symbols in the given format, with frequencies of symbols or of cells."""
    scales = (cells.scales.cpu().contiguous().view(torch.int32).numpy() >> 16).astype("<u2")
    symbols = cells.symbols.cpu().contiguous().numpy()
    if format == PACKED:
        return scales.tobytes() + _pack(symbols, cells.bits)
    assert table is not None
    model = symbol_model(table, cells.bits, format)
    return scales.tobytes() + table_bytes(table) + _write_symbols(symbols, model)


def symbol_model(table: Frequencies, bits: int, format: int) -> rans.Model:
    return rans.Model(table if format == EXPLICIT else product_frequencies(table, bits))


def read(
    reader: Reader, bits: int, count: int, format: int
) -> tuple[Quantised, Frequencies | None]:
    if bits not in BITS or (format == CELLS and CELLS_PER_SYMBOL[bits] == 1):
        raise WireError(f"there are no cells of {bits} bits in format {format:#x}")
    runs = num_runs(count)
    scales = np.frombuffer(reader.take(2 * runs, "scales"), dtype="<u2").astype(np.int32) << 16
    table = None
    if format == PACKED:
        symbols = _unpack(reader.take(32 * bits * runs, "packed cells"), bits)
    else:
        n = runs * RUN // CELLS_PER_SYMBOL[bits]
        refuse_expansion(reader, reader.at, n)
        shape = (SYMBOLS, TOTAL) if format == EXPLICIT else (levels(bits), CELL_TOTAL)
        table = read_table(reader, *shape)
        symbols = _read_symbols(reader, n, symbol_model(table, bits, format))
    found = Quantised(
        bits, count, torch.from_numpy(scales).view(torch.float32), torch.from_numpy(symbols)
    )
    check(found)
    return found, table


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
    parts = [reader.take(size, "a segment") for size in sizes]
    skip_padding(reader, start, count)
    out = np.empty(count, dtype=np.uint8)

    def segment(task: tuple[tuple[int, int], memoryview]) -> None:
        (first, last), coded = task
        rans.decode_into(out[first:last], coded, model)

    list(run_in_order(segment, zip(stretches, parts, strict=True), count))
    return out
