"""The sketch by permutation on a GPU. Every run gives the bits of the reference.

Sketching gathers: a program owns a tile of cells and adds one coordinate of each group to each, in
order, where the inverse of the group's permutation says. Nothing is kept between calls, and keys
are arguments of the programs: a new key costs what an old one costs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sketch.kernels.cuda_programs import sum_neighbours
from fetchsgd.sketch.kernels.median import median_network, middle
from fetchsgd.sketch.kernels.permuted import cuda_programs as programs
from fetchsgd.sketch.kernels.permuted import entry_programs, gather_programs, vote_programs
from fetchsgd.sketch.kernels.permuted.cuda_one_row import TritonOneRow
from fetchsgd.sketch.kernels.permuted.reference import PermutedReference
from fetchsgd.sketch.permutation import SIGNS, Permutation

# Cells that one program sums for one vector or for several together, unless that makes too few
# programs to keep a GPU busy; how many vectors; and how many floats it has in flight.
TILE = 2048
PROGRAMS = 512
VECTORS = 2
FLIGHT = 4096
# Floats that all threads of a program read at once.
READ = 512
# The least of them that are neighbours, a sector of memory: for sketches of whole vectors, and for
# all else.
PART = 16
LEAST = 8
# How many times 32 threads sum a tile, and with how many registers each at most: 96 make one row of
# blocks of 64 quicker by a quarter, and several rows slower, which have as many as they like.
WARPS = 4
REGISTERS: int | None = None
OF_ONE_ROW = 96
# Coordinates that one program estimates, and entries that one looks up.
SPAN = 1024
ENTRIES = 512
# Floats that a thread reads at once.
LANES = 4
# Words of cells that one program marks, and of coordinates on which one lets rows vote.
MARKED = 128
VOTED = 512
# How many coordinates that rows vote for there is room for, for each of those that may be kept.
ROOM = 8


class PermutedTriton(TritonOneRow):
    """The operations of the sketch on tensors in a GPU's memory."""

    samples = 1 << 18
    programs = programs

    def __init__(self, hash: Permutation, device: torch.device) -> None:
        self.hash = hash
        self.device = device
        h = hash
        sign_mask, *keys = (_signed(word) for word in (h.sign_mask, *h.keys))
        # In the order of the programs' signatures.
        self.numbers = (
            h.width, h.low_bits, h.highs, h.turns, h.flips, sign_mask, h.first_group, h.groups,
            *keys,
        )  # fmt: skip

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        h = self.hash
        count = len(pieces[0])
        out = torch.empty(count, h.rows, h.cols, dtype=torch.float32, device=self.device)
        if out.numel() == 0:
            return out
        vectors = min(VECTORS, 1 << (count - 1).bit_length())
        batches = -(-count // vectors)
        size = TILE // vectors
        while size > READ and -(-h.cols // size) * h.rows * batches < PROGRAMS:
            size //= 2
        lanes = min(LANES, h.block)
        grid = (-(-h.cols // size) * h.rows, batches)
        if pieces[0].shape[1] == h.dim:
            # An odd stride keeps threads from reading four at once; one vector has no need of it.
            stride = pieces[0].stride(0) if count > 1 else 0
            shape = self._tile(size, PART)
            share = shape["P"] // lanes  # threads that read a part of a block
            launch(
                gather_programs.gather, grid,
                out, pieces[0], stride, count, h.dim, h.rows, h.cols, *self.numbers,
                **shape, N=vectors, VECTOR=lanes, STEP=max(FLIGHT // (vectors * size), share),
                SHARE=share, num_warps=WARPS, maxnreg=OF_ONE_ROW if h.rows == 1 else REGISTERS,
            )  # fmt: skip
        else:
            segments = self._segments(pieces, first)
            launch(
                gather_programs.gather_pieces, grid,
                out, pieces[0], segments, len(segments), count, h.rows, h.cols, *self.numbers,
                **self._tile(size, LEAST), N=vectors,
            )  # fmt: skip
        return out

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        h = self.hash
        table = torch.zeros(h.rows, h.cols, dtype=torch.float32, device=self.device)
        if len(indices):
            # A sort takes launches for every byte.
            width = torch.int32 if table.numel() < 1 << 31 else torch.int64
            cells = torch.empty(h.rows * len(indices), dtype=width, device=self.device)
            signed = torch.empty(h.rows * len(indices), dtype=torch.float32, device=self.device)
            launch(
                entry_programs.place_entries, (-(-len(indices) // ENTRIES), h.rows),
                cells, signed, indices, values, len(indices), h.cols, *self.numbers,
                BLOCK=h.block, SPAN=ENTRIES,
            )  # fmt: skip
            # Equal cells become neighbours, in order of index.
            cells, order = cells.sort(stable=True)
            launch(
                sum_neighbours, (-(-len(cells) // ENTRIES),),
                table, cells, signed[order], len(cells), SPAN=ENTRIES,
            )  # fmt: skip
        return table

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        h = self.hash
        marks = torch.zeros(h.rows, h.cols, dtype=torch.bool, device=self.device)
        if len(indices):
            launch(
                entry_programs.mark_entries, (-(-len(indices) // ENTRIES), h.rows),
                marks.view(torch.uint8), indices, values, len(indices), h.cols, *self.numbers,
                BLOCK=h.block, SPAN=ENTRIES,
            )  # fmt: skip
        return marks

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        h = self.hash
        out = torch.empty(len(indices), dtype=torch.float32, device=self.device)
        if len(indices):
            launch(
                entry_programs.query_entries, (-(-len(indices) // ENTRIES),),
                out, indices, len(indices), table, h.cols, *self.numbers,
                h.block, ENTRIES, h.rows, median_network(h.rows), *middle(h.rows),
            )  # fmt: skip
        return out

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        span = range(self.hash.dim) if span is None else span
        out = torch.empty(len(span), dtype=torch.float32, device=self.device)
        begin, end = self._program_of(span.start), self._program_of(span.stop - 1) + 1
        launch(
            programs.write_estimates, (end - begin,),
            out, begin, span.start, span.stop, *self._walk(table), span.start % LANES == 0,
        )  # fmt: skip
        return out

    def candidates(
        self, table: Float32[Tensor, "rows cols"], threshold: Float32[Tensor, " 1"], capacity: int
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]] | None:
        room = ROOM * capacity
        if room > self.hash.dim // 4:  # more work than to estimate everything
            return super().candidates(table, threshold, capacity)
        indices = torch.empty(capacity, dtype=torch.int64, device=self.device)
        values = torch.empty(capacity, dtype=torch.float32, device=self.device)
        counts = self._append_voted(indices, values, table, threshold, room)
        voted, found = counts.tolist()
        if voted > room:
            return super().candidates(table, threshold, capacity)
        return None if found > capacity else (indices[:found], values[:found])

    def _append_voted(
        self,
        indices: Int64[Tensor, " capacity"],
        values: Float32[Tensor, " capacity"],
        table: Float32[Tensor, "rows cols"],
        threshold: Float32[Tensor, " 1"],
        room: int,
    ) -> Int64[Tensor, " 2"]:
        """Write what reaches the threshold; how many had enough votes, and how many reach it."""
        h, network = self.hash, (median_network(self.hash.rows), *middle(self.hash.rows))
        row_words = -(-max(h.cols, h.width * h.block) // 32)
        bits = torch.empty(h.rows, row_words, dtype=torch.int32, device=self.device)
        counts = torch.zeros(2, dtype=torch.int64, device=self.device)
        launch(
            vote_programs.mark_cells, (-(-row_words // MARKED), h.rows),
            bits, counts, len(indices), threshold, table, h.cols, row_words, WORDS=MARKED,
        )  # fmt: skip
        listed = torch.empty(room, dtype=torch.int64, device=self.device)
        each = max(h.block // 32, 1)
        launch(
            vote_programs.list_voted, (-(-h.width * each // VOTED) * h.groups,),
            listed, counts, room, bits, row_words, h.dim, *self.numbers,
            BLOCK=h.block, SIZE=h.block // each, EACH=each, UNITS=VOTED,
            ROWS=h.rows, NEEDED=(h.rows + 1) // 2,
        )  # fmt: skip
        launch(
            vote_programs.append_listed, (-(-room // ENTRIES),),
            indices, values, counts, len(indices), threshold, listed, room, table, h.cols,
            *self.numbers, h.block, ENTRIES, h.rows, *network,
        )  # fmt: skip
        return counts

    def row_energy(self, table: Float32[Tensor, "rows cols"]) -> Float64[Tensor, " rows"]:
        """Squared norm of each row."""
        return PermutedReference(self.hash, self.device).row_energy(table)

    def _segments(
        self, pieces: list[Float[Tensor, "n _"]], first: int
    ) -> Int64[Tensor, "segments 5"]:
        return _listed(
            first,
            tuple(piece.shape[1] for piece in pieces),
            tuple(piece.data_ptr() for piece in pieces),
            tuple(piece.stride(0) for piece in pieces),
            pieces[0].element_size(),
            self.hash.width * self.hash.block,
            self.device,
        )

    def _tile(self, size: int, least: int) -> dict[str, int]:
        """So many cells or coordinates: of several blocks, or of one alone.

        The more parts a block has, the more of it one thread holds; but each is read in one go,
        which is quick if it is not too short.
        """
        within = min(self.hash.block, size)
        parts = max(min(size // READ, within // least), within // SIGNS, 1)
        return {
            "BLOCK": self.hash.block, "W": parts, "T": size // within, "P": within // parts,
        }  # fmt: skip

    def _spans(self) -> tuple[int]:
        """Programs of a walk: each stays within one group."""
        return (-(-self.hash.width * self.hash.block // SPAN) * self.hash.groups,)

    def _program_of(self, coordinate: int) -> int:
        """The program of a walk that has a coordinate."""
        size = self.hash.width * self.hash.block
        group, within = divmod(coordinate, size)
        return -(-size // SPAN) * group + within // SPAN

    def _walk(self, table: Float32[Tensor, "rows cols"]) -> tuple[object, ...]:
        """What every walk over the estimates takes, in the order of the programs' signatures."""
        h = self.hash
        return (
            table, h.dim, h.cols, *self.numbers,
            *self._tile(SPAN, LEAST).values(), min(LANES, h.block) if h.mixes else 1,
            h.rows, median_network(h.rows), *middle(h.rows),
        )  # fmt: skip


def _signed(word: int) -> int:
    """The same 32 bits as a signed number, of which all have one type."""
    return (word ^ 1 << 31) - (1 << 31)


@lru_cache(maxsize=8)
def _listed(
    first: int,
    lengths: tuple[int, ...],
    addresses: tuple[int, ...],
    strides: tuple[int, ...],
    bytes_each: int,
    span: int,
    device: torch.device,
) -> Int64[Tensor, "segments 5"]:
    """Segments of a vector in pieces, as `gather_pieces` wants them: some for each piece and group.

    Gradients often stay where they are from round to round, so the last lists are kept.
    """
    listed = []
    for length, address, stride in zip(lengths, addresses, strides, strict=True):
        last = first + length
        for group in range(first // span, -(-last // span)):
            base = group * span
            within = max(first - base, 0), min(last - base, span)
            listed.append((group, *within, address + (base - first) * bytes_each, stride))
        first = last
    return torch.tensor(listed, dtype=torch.int64).to(device, non_blocking=True)
