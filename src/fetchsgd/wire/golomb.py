"""A few sorted positions, gap after gap, in Golomb's code: no table and no states to pay for.

A gap is `quotient` ones and a zero, then the remainder by M in truncated binary; M follows from dim
and count. After the last index comes the quotient of what is left up to dim, so that the size says
nothing of where the positions lie. There are never more than 256, so plain Python does.
"""

from __future__ import annotations

from fetchsgd.wire.errors import WireError
from fetchsgd.wire.reader import Reader

MOST = 256


def divisor(dim: int, count: int) -> int:
    """M, the mean gap times the logarithm of 2: one more M halves the number of longer gaps."""
    return max(dim * 45426 // (count << 16), 1)


def write(indices: list[int], dim: int) -> bytes:
    m = divisor(dim, len(indices))
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


def read(reader: Reader, dim: int, count: int) -> list[int]:
    """`count` indices below `dim`, for 0 < count < dim."""
    if count > MOST:
        raise WireError(f"Golomb's code is for at most {MOST} positions, not {count}")
    m = divisor(dim, count)
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
    """How many ones stand lowest."""
    return ((bits + 1) & ~bits).bit_length() - 1
