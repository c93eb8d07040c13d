"""Where the values of a sparse update belong: sorted indices in nearly the fewest bits.

Any subset of `count` of `dim` takes log2 of the number of such subsets. Three formats come near it:
a bitmap where about half are taken, Golomb's code for a few, entropy-coded gaps otherwise
(gaps.py). Two more hold the values too: "joint" (integers.py) and "chunks" (chunks.py). With
nothing or everything taken there is nothing to say.

In Golomb's code there is no table and there are no states to pay for. A gap is `quotient` ones and
a zero, then the remainder by M in truncated binary; M follows from dim and count. After the last
index comes the quotient of what is left up to dim, so that the size says nothing of where the
positions lie. There are never more than 256, so plain Python does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fetchsgd.wire import gaps
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.gaps import GapCode
from fetchsgd.wire.reader import Reader

NONE, BITMAP, GOLOMB, GAPS, JOINT, CHUNKS = range(6)
MOST_GOLOMB = 256

Ints = NDArray[np.int64]


def write(indices: Ints, dim: int, format: int, code: GapCode | None) -> bytes:
    if format == BITMAP:
        return write_bitmap(indices, dim)
    if format == GOLOMB:
        return write_golomb(indices.tolist(), dim)
    if format == GAPS:
        assert code is not None
        return gaps.write(indices, dim, code)
    return b""


def read(reader: Reader, dim: int, count: int, format: int) -> tuple[Ints, GapCode | None]:
    if (format == NONE) != (count in (0, dim)):
        raise WireError(f"positions format {format} does not go with {count} of {dim} positions")
    if format == BITMAP:
        return read_bitmap(reader, dim, count), None
    if format == GOLOMB:
        return np.array(read_golomb(reader, dim, count), dtype=np.int64), None
    if format == GAPS:
        return gaps.read(reader, dim, count)
    raise WireError(f"there is no positions format {format}")


def write_bitmap(indices: Ints, dim: int) -> bytes:
    """Bit i mod 8, lowest first, of byte i div 8 is set if i is taken."""
    taken = np.zeros(dim, dtype=np.bool_)
    taken[indices] = True
    return np.packbits(taken, bitorder="little").tobytes()


def read_bitmap(reader: Reader, dim: int, count: int) -> Ints:
    data = reader.take((dim + 7) // 8, "the bitmap of positions")
    packed = np.frombuffer(data, dtype=np.uint8)
    if dim % 8 and packed[-1] >> dim % 8:
        raise WireError("the bitmap of positions has bits beyond the last coordinate")
    found = np.flatnonzero(np.unpackbits(packed, bitorder="little").view(np.bool_))
    if len(found) != count:
        raise WireError(f"the bitmap has {len(found)} positions, but the header says {count}")
    return found


def _divisor(dim: int, count: int) -> int:
    """M, the mean gap times the logarithm of 2: one more M halves the number of longer gaps."""
    return max(dim * 45426 // (count << 16), 1)


def write_golomb(indices: list[int], dim: int) -> bytes:
    m = _divisor(dim, len(indices))
    size = (m - 1).bit_length()
    spare = (1 << size) - m
    bits = at = next = 0
    for index in indices:
        quotient, rest = divmod(index - next, m)
        bits |= ((1 << quotient) - 1) << at
        at += quotient + 1
        if rest < spare:
            bits |= rest << at
            at += size - 1
        else:
            rest += spare
            bits |= (rest >> 1) << at | (rest & 1) << at + size - 1 if size else 0
            at += size
        next = index + 1
    quotient = (dim - next) // m
    bits |= ((1 << quotient) - 1) << at
    at += quotient + 1
    return bits.to_bytes((at + 7) // 8, "little")


def read_golomb(reader: Reader, dim: int, count: int) -> list[int]:
    """`count` indices below `dim`, for 0 < count < dim."""
    if count > MOST_GOLOMB:
        raise WireError(f"Golomb's code is for at most {MOST_GOLOMB} positions, not {count}")
    m = _divisor(dim, count)
    size = (m - 1).bit_length()
    spare = (1 << size) - m
    # All quotients together are at most dim / M, which is below 3 count.
    most = count * (size + 1) + dim // m + 1
    window = reader.data[reader.at : reader.at + (most + 7) // 8]
    bits = int.from_bytes(window, "little")
    used = next = 0
    indices = []
    for _ in range(count):
        quotient = _ones(bits)
        bits >>= quotient + 1
        used += quotient + 1
        short = max(size - 1, 0)
        rest = bits & ((1 << short) - 1)
        if rest >= spare and size:
            rest = (rest << 1 | bits >> short & 1) - spare
            short = size
        bits >>= short
        used += short
        indices.append(next + quotient * m + rest)
        next = indices[-1] + 1
    quotient = _ones(bits)
    used += quotient + 1
    if next + quotient * m > dim or dim - next - quotient * m >= m:
        raise WireError(f"positions in Golomb's code do not lead to dim {dim}")
    reader.take((used + 7) // 8, "positions in Golomb's code")
    if window[(used - 1) // 8] >> (used - 1) % 8:
        raise WireError("positions in Golomb's code are followed by bits that are not zero")
    return indices


def _ones(bits: int) -> int:
    """How many of the lowest bits are ones, up to the first zero."""
    return ((bits + 1) & ~bits).bit_length() - 1
