"""The sketch on a GPU: the Triton programs of cuda_programs.py. Every run gives the same bits.

Sketching gathers: a program owns a tile of cells and adds up the runs that cover it, found
through a list of blocks sorted by start. Unsketching reads a run of cells per row, which mostly
stays in the L2 cache, and takes the median in registers. Top-k walks over all estimates and keeps
the few that reach a threshold, which with one row follows from the cells and else from a sample.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels import cuda_programs as programs
from fetchsgd.sketch.kernels.cuda_layout import PieceLayout, SortedRuns
from fetchsgd.sketch.kernels.cuda_selection import TritonSelection
from fetchsgd.sketch.kernels.median import median_network, middle
from fetchsgd.sketch.kernels.pieces import slices
from fetchsgd.sketch.kernels.reference import ReferenceKernels

# Coordinates that one program estimates.
SPAN = 512
# Cells that one program sums, and runs that it reads at once, in a single warp: fewer where fewer
# cover a tile. A short run covers little of a tile, so tiles are smaller there.
TILE = 128
BLOCKS_IN_TILE = 8
RUNS_AT_ONCE = 32
FEW_RUNS = 4
# Rows of at most this many cells are sorted whole. To select the largest and put them in order
# takes a sort as well, and more launches besides; but it moves less memory.
SORTED_CELLS = 1 << 22
# Blocks whose cells are counted at once.
SLICE = 1 << 26
# Programs that keep the card busy; a small table is split further to reach this many.
ENOUGH_PROGRAMS = 2048


class TritonKernels(TritonSelection):
    """The operations of the sketch on tensors in a GPU's memory."""

    hash: BlockHash
    samples = 1 << 18
    programs = programs

    def __init__(self, hash: BlockHash, device: torch.device) -> None:
        self.hash = hash
        self.device = device
        self.reference = ReferenceKernels(hash, device)
        self.tile = min(max(BLOCKS_IN_TILE * (1 << (hash.block - 1).bit_length()), 32), TILE)
        self.placements = self.reference.placements
        self.layouts: dict[tuple[int, ...], PieceLayout] = {}
        self.wanted: dict[int, tuple[Int64[Tensor, " 1"], int]] = {}

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        h = self.hash
        count = pieces[0].shape[0]
        if sum(piece.shape[1] for piece in pieces) < h.dim:
            return self._sketch_part(pieces, first)
        tiles = -(-h.cols // self.tile)
        splits = self._splits(count * h.rows * tiles)
        out = torch.empty(splits, count, h.rows, h.cols, dtype=torch.float32, device=self.device)
        if out.numel() == 0:
            return out[0]
        if len(pieces) == 1:
            addresses, stride = pieces[0], pieces[0].stride(0)
        else:
            addresses, stride = self._layout(pieces).addresses(pieces), h.num_blocks
        runs = self.sorted_runs
        few = self._runs_in_tile <= 2 * FEW_RUNS
        launch(
            programs.gather_runs, (tiles * splits, h.rows, count),
            out, pieces[0], addresses, stride,
            runs.starts, runs.blocks, runs.starts.shape[1], runs.bounds,
            h.dim, h.cols, tiles, splits,
            BLOCK=h.block, TILE=self.tile, RUNS=FEW_RUNS if few else RUNS_AT_ONCE,
            IN_PIECES=len(pieces) > 1, num_warps=1,
        )  # fmt: skip
        return out.sum(dim=0) if splits > 1 else out[0]

    def _sketch_part(
        self, pieces: list[Float[Tensor, "n _"]], first: int
    ) -> Float32[Tensor, "n rows cols"]:
        """As entries of a sparse vector: the lists of runs are those of whole vectors."""
        count = len(pieces[0])
        tables = torch.zeros(
            count, self.hash.rows, self.hash.cols, dtype=torch.float32, device=self.device
        )
        for begin, part in slices(pieces, first):
            indices = torch.arange(begin, begin + part.shape[1], device=self.device)
            for table, values in zip(tables, part.float(), strict=True):
                table += self.scatter(indices, values)
        return tables

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        h = self.hash
        table = torch.zeros(h.rows, h.cols, dtype=torch.float32, device=self.device)
        if len(indices):
            packed = self.placements[:, indices // h.block]
            cells = ((packed >> 1) + indices % h.block) % h.cols
            if h.rows > 1:
                cells += torch.arange(h.rows, device=self.device)[:, None] * h.cols
            if table.numel() < 1 << 31:  # a sort takes launches for every byte
                cells = cells.int()
            # Equal cells become neighbours, in order of index.
            cells, order = cells.flatten().sort(stable=True)
            signed = torch.where(packed & 1 == 1, -values, values).flatten()[order]
            launch(
                programs.sum_neighbours, (-(-len(cells) // SPAN),),
                table, cells, signed, len(cells), SPAN=SPAN,
            )  # fmt: skip
        return table

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        h = self.hash
        marks = torch.zeros(h.rows, h.cols, dtype=torch.bool, device=self.device)
        if len(indices):
            launch(
                programs.mark_cells, (-(-len(indices) // SPAN),),
                marks.view(torch.uint8), indices, values, len(indices),
                self.placements, h.cols, h.num_blocks, h.block, h.rows, SPAN,
            )  # fmt: skip
        return marks

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        out = torch.empty(len(indices), dtype=torch.float32, device=self.device)
        spans = -(-len(indices) // SPAN)
        if spans:
            arguments = self._walk(table)
            launch(programs.query_entries, (spans,), out, indices, len(indices), *arguments)
        return out

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        if span is not None:
            return self.query(table, torch.arange(span.start, span.stop, device=self.device))
        out = torch.empty(self.hash.dim, dtype=torch.float32, device=self.device)
        launch(programs.write_estimates, self._spans(), out, *self._walk(table))
        return out

    def row_energy(self, table: Float32[Tensor, "rows cols"]) -> Float64[Tensor, " rows"]:
        """Squared norm of each row."""
        return self.reference.row_energy(table)

    def _threshold_of_one_row(self, row: Float32[Tensor, " cols"], k: int) -> Float32[Tensor, " 1"]:
        """The k-th largest |estimate|, given how many coordinates share each cell."""
        if k not in self.wanted:
            # So many that even the emptiest cells would hold k coordinates together.
            held = self.cell_loads.sort().values.cumsum(dim=0)
            enough = int((held < k).sum()) + 1
            self.wanted[k] = torch.full_like(held[:1], k), enough
        wanted, enough = self.wanted[k]
        magnitudes = row.abs()
        if len(row) <= SORTED_CELLS:
            largest, cells = (part[:enough] for part in magnitudes.sort(descending=True))
        else:
            largest, cells = magnitudes.topk(enough)
        reached = self.cell_loads[cells].cumsum(dim=0)
        return largest[torch.searchsorted(reached, wanted)]

    @cached_property
    def cell_loads(self) -> Int64[Tensor, " cols"]:
        """How many coordinates land in each cell of row 0."""
        h = self.hash
        change = torch.zeros(h.cols, dtype=torch.int64, device=self.device)
        wraps = change.new_zeros(())
        for first in range(0, h.num_blocks, SLICE):  # a large model's blocks take gigabytes
            starts = (self.placements[0, first : first + SLICE] >> 1).long()
            ends = starts + h.block
            if first + SLICE >= h.num_blocks:
                ends[-1] -= h.num_blocks * h.block - h.dim
            change += starts.bincount(minlength=h.cols)
            change -= (ends % h.cols).bincount(minlength=h.cols)
            wraps += (ends >= h.cols).sum()
        return change.cumsum(dim=0) + wraps

    @cached_property
    def sorted_runs(self) -> SortedRuns:
        return SortedRuns.of(self.placements, self.hash.block, self.hash.cols, self.tile)

    def _layout(self, pieces: list[Float[Tensor, "n _"]]) -> PieceLayout:
        lengths = tuple(piece.shape[1] for piece in pieces)
        if lengths not in self.layouts:
            self.layouts[lengths] = PieceLayout(lengths, self.hash.block, self.device)
        return self.layouts[lengths]

    def _splits(self, programs: int) -> int:
        most = max(self._runs_in_tile // (4 * RUNS_AT_ONCE), 1)
        return min(-(-ENOUGH_PROGRAMS // max(programs, 1)), most)

    @property
    def _runs_in_tile(self) -> int:
        """How many runs cover a part of a tile, on average."""
        return self.hash.num_blocks * (self.tile + self.hash.block) // self.hash.cols

    def _spans(self) -> tuple[int]:
        return (-(-self.hash.dim // SPAN),)

    def _walk(self, table: Float32[Tensor, "rows cols"]) -> tuple[object, ...]:
        """What every walk over the estimates takes, in the order of the kernels' signatures."""
        h = self.hash
        network = median_network(h.rows)
        return (
            table, self.placements, h.dim, h.cols, h.num_blocks,
            h.block, h.rows, network, *middle(h.rows), SPAN,
        )  # fmt: skip
