"""Where the values of a sparse update belong: sorted indices in nearly the fewest bits.

Any subset of `count` of `dim` takes log2 of the number of such subsets. Three formats come near it:
a bitmap where about half are taken, Golomb's code for a few, entropy-coded gaps otherwise. (A
fourth, "joint", is in integers.py.) With nothing or everything taken there is nothing to say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fetchsgd.wire import gaps, golomb
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.gaps import GapCode
from fetchsgd.wire.reader import Reader

NONE, BITMAP, GOLOMB, GAPS, JOINT = range(5)

Ints = NDArray[np.int64]


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


def write(indices: Ints, dim: int, format: int, code: GapCode | None) -> bytes:
    if format == BITMAP:
        return write_bitmap(indices, dim)
    if format == GOLOMB:
        return golomb.write(indices.tolist(), dim)
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
        return np.array(golomb.read(reader, dim, count), dtype=np.int64), None
    if format == GAPS:
        return gaps.read(reader, dim, count)
    raise WireError(f"there is no positions format {format}")
