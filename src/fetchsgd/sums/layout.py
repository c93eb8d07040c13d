"""How numbers lie in the blocks that are rotated. docs/wire.md specifies it.

`count` numbers, filled up with zeros, are the rows of a matrix of `block` rows and `blocks`
columns; each column is a block. So a block holds numbers from everywhere in a vector: the blocks of
a model have about the same length, however much its layers differ. And a rotation adds and
subtracts whole rows, which is all that vector instructions and GPUs want.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_BLOCK, LEAST_BLOCK = 4096, 256
# A block is halved while more than this part of the numbers would be filled up.
MOST_FILLED = 1 / 32


@dataclass(frozen=True)
class Layout:
    """`count` numbers in `blocks` blocks of `block` cells, a power of two."""

    count: int
    block: int
    blocks: int

    @classmethod
    def of(cls, count: int) -> Layout:
        block = min(1 << max(count - 1, 0).bit_length(), MOST_BLOCK)
        while block > LEAST_BLOCK and -count % block > MOST_FILLED * count:
            block //= 2
        return cls(count, block, -(-count // block))

    @property
    def cells(self) -> int:
        """Numbers and what fills them up."""
        return self.block * self.blocks

    @property
    def words(self) -> int:
        """Words of 32 bits, a bit for each cell."""
        return -(-self.cells // 32)
