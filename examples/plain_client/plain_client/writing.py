"""A writer of the wire format: messages up, written from docs/wire.md.

Where a writer may choose, it chooses as fetchsgd does ("What our writer chooses"), so that equal
numbers are equal bytes. A client may leave that out, and send all cells packed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from plain_client.decoding import products
from plain_client.reading import VERSION
from plain_client.rounding import Levels, top_level
from plain_client.sketching import Sketch

DENSE, SKETCH, PERMUTED = 1, 2, 5
FLOAT32, BFLOAT16 = 1, 3
PACKED, OF_SYMBOLS, OF_CELLS = 0x10, 0x20, 0x30
PER_SYMBOL = {2: 4, 3: 2, 4: 2, 6: 1, 8: 1}


def message(count: int, format: int, section: bytes, round: int, of: Sketch | None) -> bytes:
    """A dense vector, or the table of a sketch, with its numbers in a section."""
    if of is None:
        kind, rows, dim, seed, cols, block = DENSE, 0, count, 0, 0, 0
    else:
        kind = PERMUTED if of.permuted else SKETCH
        rows, dim, seed, cols, block = of.rows, of.dim, of.seed, of.cols, of.block
    length = 64 + len(section)
    head = struct.pack(
        "<4sBBBBIIQQIIQQI",
        b"FSGW", VERSION, kind, format, 0, round, rows, dim, seed, cols, block, count, length, 0,
    )  # fmt: skip
    return head + struct.pack("<I", zlib.crc32(head + section)) + section


def floats_section(numbers: np.ndarray, bits: int) -> tuple[int, bytes]:
    """Format and bytes; with 16 bits the numbers are exactly bfloat16."""
    if bits == 32:
        return FLOAT32, numbers.astype("<f4").tobytes()
    return BFLOAT16, (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()


def levels_section(cells: Levels) -> tuple[int, bytes]:
    """Scales, then symbols: packed or coded by entropy, whichever is predicted to be shortest."""
    bits, symbols = cells.bits, symbols_of(cells)
    scales = (cells.scales.view(np.uint32) >> 16).astype("<u2").tobytes()
    best, size, section = PACKED, len(cells.scales) * (2 + 32 * bits), packed(symbols, bits)
    for form, table, frequencies in tables(symbols, bits):
        if (coded := predicted(symbols, table, frequencies) + len(scales)) < size:
            best, size = form, coded
            section = table + stream(symbols.ravel().tolist(), frequencies)
    return best + bits, scales + section


def symbols_of(cells: Levels) -> np.ndarray:
    """(runs, symbols): symbol j holds cells j, j + S, j + 2S, ..."""
    parts = (cells.levels + top_level(cells.bits)).reshape(
        len(cells.scales), PER_SYMBOL[cells.bits], -1
    )
    shifts = cells.bits * np.arange(parts.shape[1])[:, None]
    return (parts << shifts).sum(axis=1).astype(np.uint8)


def packed(symbols: np.ndarray, bits: int) -> bytes:
    if bits not in (3, 6):
        return symbols.tobytes()
    four = symbols.astype(np.uint32).reshape(len(symbols), 4, -1)
    joined = (four << 6 * np.arange(4, dtype=np.uint32)[:, None]).sum(axis=1)
    return np.stack([joined, joined >> 8, joined >> 16], axis=1).astype(np.uint8).tobytes()


def tables(symbols: np.ndarray, bits: int) -> list[tuple[int, bytes, list[int]]]:
    """For each form its table as bytes, and the frequencies of symbols that follow from it."""
    counts = np.bincount(symbols.ravel(), minlength=256)
    table = normalised(counts, 2**14)
    found = [(OF_SYMBOLS, table_bytes(table), table)]
    if PER_SYMBOL[bits] > 1:
        stored = symbols.ravel()[:, None] >> bits * np.arange(PER_SYMBOL[bits]) & 2**bits - 1
        of_cells = normalised(np.bincount(stored.ravel(), minlength=2**bits - 1), 2**12)
        padded = [*of_cells, 0]
        found.append((OF_CELLS, table_bytes(of_cells), products(padded, bits, PER_SYMBOL[bits])))
    return found


def normalised(counts: np.ndarray, total: int) -> list[int]:
    """Frequencies in proportion to counts, at least 1 for what occurs."""
    exact = counts * (total / counts.sum())
    found = np.maximum(np.floor(exact), counts > 0).astype(np.int64)
    missing = total - int(found.sum())
    if missing > 0:
        lacking = np.where(counts > 0, found - exact, np.inf)
        found[np.argsort(lacking, kind="stable")[:missing]] += 1
    for _ in range(-missing):
        loss = [c / (f - 1) if f > 1 else np.inf for c, f in zip(counts, found, strict=True)]
        found[np.argmin(loss)] -= 1  # where that lengthens the message least
    return found.tolist()


def predicted(symbols: np.ndarray, table: bytes, frequencies: list[int]) -> float:
    """Bytes of a table and a stream, up to what is rounded."""
    counts = np.bincount(symbols.ravel(), minlength=256)
    used, n = counts > 0, symbols.size
    bits = (counts[used] * np.log2(2**14 / np.array(frequencies)[used])).sum()
    segments = -(-n // 65536)
    lanes = n // 65536 * 4 + (0 if n % 65536 == 0 else 1 if n % 65536 < 16384 else 4)
    size = np.float32(bits) / np.float32(8) + np.float32(3 * lanes)
    directory = segments * (1 + int(size / segments >= 128) + int(size / segments >= 16384))
    return len(table) + max(float(size + np.float32(directory)), -(-n // 32))


def table_bytes(frequencies: Sequence[int]) -> bytes:
    out, zeros = b"", 0
    for frequency in frequencies:
        if frequency and zeros:
            out += bytes([0, zeros - 1])
        zeros = 0 if frequency else zeros + 1
        out += number(frequency) if frequency else b""
    return out


def number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def stream(symbols: list[int], frequencies: list[int]) -> bytes:
    """A directory, segments of 65,536 symbols, and padding."""
    parts = [rans(symbols[i : i + 65536], frequencies) for i in range(0, len(symbols), 65536)]
    found = b"".join([*(number(len(part)) for part in parts), *parts])
    return found + bytes(max(-(-len(symbols) // 32) - len(found), 0))


def rans(symbols: list[int], frequencies: list[int]) -> bytes:
    starts = np.concatenate([[0], np.cumsum(frequencies)]).tolist()
    lanes = 1 if len(symbols) < 16384 else 4
    states, words = [2**16] * lanes, []
    for i in reversed(range(len(symbols))):
        f, x = frequencies[symbols[i]], states[i % lanes]
        if x >= f << 18:
            words.append(x & 0xFFFF)
            x >>= 16
        states[i % lanes] = (x // f << 14) + x % f + starts[symbols[i]]
    return struct.pack(f"<{lanes}I{len(words)}H", *states, *reversed(words))
