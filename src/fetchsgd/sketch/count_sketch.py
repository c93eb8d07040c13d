"""CountSketch: the operator S, its inverse U, and Top-k(U(.)) (Algorithm 1, lines 8 and 13).

The operator holds no table. Tables are ordinary float32 tensors of shape (rows, cols), so merging
clients, momentum and error accumulation are ordinary arithmetic on them:

>>> import torch
>>> sketch = CountSketch(dim=1000, rows=5, cols=64)
>>> a, b = torch.zeros(1000), torch.zeros(1000)
>>> a[3], b[7] = 5.0, -9.0
>>> table = sketch.sketch(a) + sketch.sketch(b)
>>> sketch.top_k(table, k=2).indices
tensor([3, 7])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.sketch.checks import (
    check_pieces,
    check_span,
    check_table,
    check_whole_number,
    refuse_infinite,
)
from fetchsgd.sketch.hashing import MAX_BLOCKS, MAX_COLS, BlockHash, round_seed
from fetchsgd.sketch.kernels import KERNEL_NAMES, KernelName, Kernels, make_kernels
from fetchsgd.sketch.permutation import MAX_GROUPS, Permutation
from fetchsgd.vector import SparseVector

HashName = Literal["blocks", "permutation"]
HASH_NAMES = ("blocks", "permutation")
Table = Float32[Tensor, "rows cols"]
Tables = Float32[Tensor, "n rows cols"]

# Longer runs move no faster. With few blocks across a row, two that meet share much of their
# length, and errors come in clumps; small tables are fast enough with small blocks.
MAX_DEFAULT_BLOCK = 1024
MIN_BLOCKS_ACROSS = 4096


def default_block(cols: int) -> int:
    """The largest power of two up to 1024 that fits 4096 times into a row."""
    block = MAX_DEFAULT_BLOCK
    while block > 1 and block * MIN_BLOCKS_ACROSS > cols:
        block //= 2
    return block


@dataclass(frozen=True)
class CountSketch:
    """A linear map from vectors of length `dim` to tables of `rows` x `cols` cells.

    Equal arguments give equal maps on every device and platform (docs/hash.md). `block` is the
    number of neighbours that move together; 1 is the textbook sketch, None chooses for speed.
    `hash` is "blocks", which draws a table of places for each seed, or "permutation", which
    computes them: another seed then costs nothing (`with_seed`, `for_round`), cells are balanced,
    and a power of two must be the block.
    `kernel` forces an implementation: "reference", "numba" or "triton".
    """

    dim: int
    rows: int
    cols: int
    seed: int = 0
    block: int | None = None
    hash: HashName = field(default="blocks", kw_only=True)
    kernel: KernelName = field(default="auto", kw_only=True, compare=False)
    _hash: BlockHash | Permutation = field(init=False, repr=False, compare=False)
    _kernels: dict[tuple[torch.device, bool, int | None], Kernels] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        check_whole_number("dim", self.dim, 1)
        check_whole_number("rows", self.rows, 1)
        check_whole_number("cols", self.cols, 1, MAX_COLS)
        check_whole_number("seed", self.seed, 0, 2**64 - 1)
        block = default_block(self.cols) if self.block is None else self.block
        check_whole_number("block", block, 1)
        if block > self.cols:
            raise ValueError(
                f"cols={self.cols} is too small for block={block}: a block must fit into a row; "
                f"use cols >= {block} or block=None"
            )
        if -(-self.dim // block) > MAX_BLOCKS:
            raise ValueError(
                f"block={block} cuts dim={self.dim} into more than 2^30 blocks; use a larger block"
            )
        if self.kernel not in KERNEL_NAMES:
            raise ValueError(f"kernel={self.kernel!r} is not one of {', '.join(KERNEL_NAMES)}")
        if self.hash not in HASH_NAMES:
            raise ValueError(f"hash={self.hash!r} is not one of {', '.join(HASH_NAMES)}")
        if self.hash == "permutation" and block & (block - 1):
            raise ValueError(
                f"block={block} is not a power of two, which hash='permutation' needs; "
                f"use block={1 << block.bit_length() - 1} or block=None"
            )
        object.__setattr__(self, "block", block)
        kind = Permutation if self.hash == "permutation" else BlockHash
        hash = kind(self.dim, self.rows, self.cols, block, self.seed)
        if isinstance(hash, Permutation) and self.rows * hash.groups > MAX_GROUPS:
            raise ValueError(
                f"rows={self.rows} and cols={self.cols} are {self.rows * hash.groups} groups, "
                "more than 2^30; use more cols or fewer rows"
            )
        object.__setattr__(self, "_hash", hash)

    @classmethod
    def for_budget(
        cls,
        dim: int,
        bytes: int,
        rows: int = 1,
        seed: int = 0,
        block: int | None = None,
        *,
        hash: HashName = "blocks",
    ) -> CountSketch:
        """The widest sketch whose float32 table takes at most that many bytes."""
        check_whole_number("rows", rows, 1)
        check_whole_number("bytes", bytes, 4 * rows)
        return cls(dim, rows, min(bytes // (4 * rows), MAX_COLS), seed, block, hash=hash)

    def with_seed(self, seed: int) -> CountSketch:
        """The same sketch with another hash."""
        return replace(self, seed=seed)

    def for_round(self, round: int) -> CountSketch:
        """The sketch of one round, where each has a fresh hash: it follows from seed and round."""
        last: tuple[int, CountSketch] | None = self.__dict__.get("_last")
        if last is not None and last[0] == round:  # to compress, and then to read
            return last[1]
        check_whole_number("round", round, 0, 2**64 - 2)
        found = self.with_seed(round_seed(self.seed, round))
        if self.hash == "permutation":  # which takes no memory
            self.__dict__["_last"] = round, found
        return found

    @property
    def num_cells(self) -> int:
        return self.rows * self.cols

    def zeros(self, device: torch.device | str = "cpu") -> Table:
        """The sketch of the zero vector (Algorithm 1, line 1)."""
        return torch.zeros(self.rows, self.cols, dtype=torch.float32, device=device)

    def sketch(
        self, x: Tensor | SparseVector | Sequence[Tensor], *, batched: bool = False
    ) -> Table | Tables:
        """S(x), for a vector given as a tensor, a SparseVector, or a list of tensors in order.

        The tensors of a list may have any shapes, such as a model's gradients, and together make
        up the vector. A tensor (n, dim) is a batch and gives (n, rows, cols); a list is one when
        `batched` is set, and then every tensor in it has n as its first dimension.
        """
        if isinstance(x, SparseVector):
            self._check_dim(x)
            return self._on(x.values.device).scatter(x.indices, x.values)
        pieces, batched = check_pieces(x, self.dim, batched)
        tables = self._on(pieces[0].device).sketch(pieces)
        return tables if batched else tables[0]

    def add_part(self, table: Table, x: Tensor, first: int) -> None:
        """Add to a table, in place, S of the vector that is x from `first` on, and zero elsewhere.

        Added to zeros(), the parts of a vector make up S of it, in whatever order they come: a
        layer's gradient can be sketched and forgotten before the next is there. x may have any
        shape. Sums are in another order than those of `sketch`, and so may be rounded differently.
        """
        check_table(table, self.rows, self.cols, finite=False)
        check_span(first, x.numel(), self.dim)
        if not table.is_contiguous() or table.device != x.device:
            raise ValueError(
                "table must be contiguous, and on the device of x, to be added to in place; got "
                f"strides {table.stride()} on {table.device}, and x on {x.device}"
            )
        if x.numel():
            [piece], _ = check_pieces(x.reshape(-1), x.numel(), batched=False)
            self._on(x.device).add(table, piece, first)

    def fold(self, x: Tensor | Sequence[Tensor], *, batched: bool = False) -> Table | Tables:
        """As `sketch`, but with all signs +1: each cell gets the sum of its coordinates."""
        pieces, batched = check_pieces(x, self.dim, batched)
        tables = self._on(pieces[0].device, signed=False).sketch(pieces)
        return tables if batched else tables[0]

    def spread(self, table: Table, row: int = 0) -> Float32[Tensor, " dim"]:
        """Every coordinate's cell of one row, without its sign."""
        check_whole_number("row", row, 0, self.rows - 1)
        check_table(table, self.rows, self.cols, finite=False)
        one = self._on(table.device, signed=False, row=row)
        return one.estimate(table[row : row + 1].contiguous())

    def spread_part(
        self, table: Table, first: int, count: int, row: int = 0
    ) -> Float32[Tensor, " count"]:
        """The same for coordinates first to first + count - 1."""
        check_whole_number("row", row, 0, self.rows - 1)
        check_table(table, self.rows, self.cols, finite=False)
        span = check_span(first, count, self.dim)
        one = self._on(table.device, signed=False, row=row)
        return one.estimate(table[row : row + 1].contiguous(), span) if span else table.new_zeros(0)

    def spread_at(
        self, table: Table, indices: Int64[Tensor, " n"], row: int = 0
    ) -> Float32[Tensor, " n"]:
        """The same for the given coordinates."""
        check_whole_number("row", row, 0, self.rows - 1)
        check_table(table, self.rows, self.cols, finite=False)
        one = self._on(table.device, signed=False, row=row)
        return one.query(table[row : row + 1].contiguous(), indices)

    def touched(self, x: SparseVector) -> Bool[Tensor, "rows cols"]:
        """The cells of the coordinates of x that are not zero, also where these cancel in S(x)."""
        self._check_dim(x)
        return self._on(x.values.device).touched(x.indices, x.values)

    def estimate(self, table: Table) -> Float32[Tensor, " dim"]:
        """U(table): for every coordinate the median over rows of its signed cells."""
        return self._on_table(table).estimate(table.contiguous())

    def estimate_part(self, table: Table, first: int, count: int) -> Float32[Tensor, " count"]:
        """U(table) at coordinates first to first + count - 1."""
        kernels, span = self._on_table(table), check_span(first, count, self.dim)
        return kernels.estimate(table.contiguous(), span) if span else table.new_zeros(0)

    def query(self, table: Table, indices: Int64[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """U(table) at the given coordinates alone."""
        return self._on_table(table).query(table.contiguous(), indices)

    def top_k(self, table: Table, k: int, *, check_finite: bool = True) -> SparseVector:
        """Top-k(U(table)): exactly k coordinates, zeros among them if need be.

        Of equal magnitudes the one with the lower index wins. `check_finite=False` leaves out the
        search for NaN and infinity, which waits for the device; the result is then meaningless if
        there are any.
        """
        check_whole_number("k", k, 0, self.dim)
        kernels = self._on_table(table)
        total = None
        if check_finite and table.is_cuda:
            # Looked at last, so that the rest does not wait for the answer.
            total = table.sum()
        elif check_finite:
            refuse_infinite(table, table.sum())
        found = kernels.top_k(table.contiguous(), k)
        if total is not None:
            refuse_infinite(table, total)
        return SparseVector.trusted(self.dim, *found)

    def heavy_hitters(self, table: Table, tau: float) -> SparseVector:
        """All coordinates with |U(table)| >= tau * l2(table) (the paper's proof of theorem 2)."""
        if not 0 <= tau < math.inf:
            raise ValueError(f"tau must be a finite number >= 0, got {tau}")
        kernels = self._on_table(table, check_finite=True)
        exact = tau * self.l2(table)
        # The smallest float32 that is not below: estimates are float32.
        threshold = np.float32(exact)
        if float(threshold) < exact:
            threshold = np.nextafter(threshold, np.float32(math.inf))
        return SparseVector.trusted(
            self.dim, *kernels.at_least(table.contiguous(), float(threshold))
        )

    def l2(self, table: Table) -> float:
        """An estimate of |x| from S(x): the root of the median over rows of the cells' energy."""
        energy = self._on_table(table).row_energy(table.contiguous())
        return math.sqrt(float(energy.quantile(0.5)))

    def _check_dim(self, x: SparseVector) -> None:
        if x.dim != self.dim:
            raise ValueError(f"x has dim {x.dim}, but this sketch has dim={self.dim}")

    def _on_table(self, table: Table, check_finite: bool = False) -> Kernels:
        check_table(table, self.rows, self.cols, check_finite)
        return self._on(table.device)

    def _on(self, device: torch.device, *, signed: bool = True, row: int | None = None) -> Kernels:
        """Kernels for a device: of the sketch, or of its variants without signs."""
        key = device, signed, None if self.rows == 1 else row
        if key not in self._kernels:
            hash = self._hash if signed else self._hash.without_signs(row)
            self._kernels[key] = make_kernels(self.kernel, hash, device)
        return self._kernels[key]
