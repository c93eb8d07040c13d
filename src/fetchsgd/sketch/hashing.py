"""Where each coordinate goes: one bucket and one sign for every block of a row.

The paper's Count Sketch (appendix C, algorithm 2) hashes coordinates. We hash *blocks* of
`block` consecutive coordinates: block b of row j gets a start in [0, cols) and a sign, and
coordinate i of that block lands in bucket (start + i mod block) mod cols. Memory then moves in
runs, and every estimate keeps the guarantee of the textbook sketch, which is `block=1`.
`docs/hash.md` specifies the numbers below exactly, with test vectors and the proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# A placement is `start << 1 | negative` in an int32, so starts have 30 bits.
MAX_COLS = 1 << 30
# Block numbers are packed with a sign in the same way.
MAX_BLOCKS = 1 << 30
# Words that are drawn at once.
DRAWN = 1 << 20


def draw_placements(seed: int, row: int, cols: int, count: int) -> NDArray[np.int32]:
    """Start and sign of the first `count` blocks of a row, packed as `start << 1 | negative`.

    Word b of the Philox4x64-10 stream with key (seed, row) gives the sign in its lowest bit and
    the start as floor((word >> 1) * cols / 2^63), here in 64-bit arithmetic without overflow.
    """
    stream = np.random.Philox(key=np.array([seed, row], dtype=np.uint64))
    packed = np.empty(count, dtype=np.int32)
    # One after another: the first use may be in a thread that has the others wait for it.
    for first in range(0, count, DRAWN):
        part = packed[first : first + DRAWN]
        part[:] = _pack(stream.random_raw(len(part)), cols)
    return packed


def _pack(words: NDArray[np.uint64], cols: int) -> NDArray[np.int32]:
    high = words >> np.uint64(32)
    low = (words & np.uint64(0xFFFFFFFF)) >> np.uint64(1)
    width = np.uint64(cols)
    start = (high * width + ((low * width) >> np.uint64(31))) >> np.uint64(32)
    packed: NDArray[np.int32] = (start << np.uint64(1) | words & np.uint64(1)).astype(np.int32)
    return packed


@dataclass(frozen=True)
class BlockHash:
    """The hash of one sketch: its five numbers, and the placements that follow from them."""

    dim: int
    rows: int
    cols: int
    block: int
    seed: int
    # Variants: row `first_row` alone, and all signs +1.
    first_row: int = 0
    signed: bool = True
    num_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_blocks", -(-self.dim // self.block))

    @cached_property
    def placements(self) -> NDArray[np.int32]:
        """(rows, num_blocks) packed starts and signs, drawn on first use."""
        rows = range(self.first_row, self.first_row + self.rows)
        each = [draw_placements(self.seed, row, self.cols, self.num_blocks) for row in rows]
        drawn = each[0][None] if len(each) == 1 else np.stack(each)
        if not self.signed:
            drawn &= ~1
        return drawn

    def without_signs(self, row: int | None = None) -> BlockHash:
        """The same with all signs +1: of all rows, or of one alone."""
        if row is None:
            return replace(self, signed=False)
        return replace(self, signed=False, rows=1, first_row=row)


def round_seed(seed: int, round: int) -> int:
    """The seed of a round's own hash: a word of Philox4x64-10 (docs/hash.md)."""
    stream = np.random.Philox(
        counter=np.array([round, 0, 0, 2], dtype=np.uint64),
        key=np.array([seed, 0], dtype=np.uint64),
    )
    return int(stream.random_raw(1)[0])
