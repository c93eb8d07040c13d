"""Vectors of cells modulo 2^b as planes of bits, b bits a cell.

64 cells are b words of 64 bits: word j holds bit j of each of them. So a sum modulo 2^b is a chain
of b additions of single bits, each for 64 cells at once and, in vector registers, for 512: the same
few instructions for every b, with no bit unused and no cell that crosses a word. Groups of 64 cells
stand in blocks of 64, plane by plane; the last block is as narrow as it can be.

    word(block, plane, group) = block * 64 * bits + plane * width(block) + group

Cells beyond the last are zero before masks are added, and ignored after.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt32, UInt64
from numpy import ndarray

LEAST_BITS, MOST_BITS = 4, 32
GROUP = 64  # cells
LANES = 64  # groups in a block


def num_words(cells: int, bits: int) -> int:
    return -(-cells // GROUP) * bits


def num_bytes(cells: int, bits: int) -> int:
    """What `cells` cells take when they are packed."""
    return 8 * num_words(cells, bits)


def pack(cells: UInt32[ndarray, " cells"], bits: int) -> UInt64[ndarray, " words"]:
    """Cells as planes; bits above the modulus are cut off."""
    from fetchsgd.secure import plane_loops

    words = np.zeros(num_words(cells.size, bits), dtype=np.uint64)
    plane_loops.pack(cells, bits, words)
    return words


def unpack(words: UInt64[ndarray, " words"], cells: int, bits: int) -> UInt32[ndarray, " cells"]:
    """The cells again."""
    from fetchsgd.secure import plane_loops

    out = np.zeros(cells, dtype=np.uint32)
    plane_loops.unpack(words, bits, out)
    return out


def add(
    total: UInt64[ndarray, " words"], other: UInt64[ndarray, " words"], bits: int, negative: bool
) -> None:
    """Add `other` to `total`, or subtract it, in place: whole blocks, or up to the last one."""
    from fetchsgd.secure import plane_loops

    loop = plane_loops.subtract if negative else plane_loops.add
    loop(total, other, bits)
