"""Index structures of the GPU kernels: built once, in torch, and kept on the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sketch.kernels import cuda_programs as programs

# Lanes or blocks that one program looks up.
SPAN = 1024


@dataclass(frozen=True)
class SortedRuns:
    """For each row its runs sorted by start, and for each tile of cells which of them cover it.

    A run that wraps around stands in the list twice, the second time with a negative start, so
    that a kernel needs no modulus. Lists are padded to one length; `bounds` leaves that out.
    """

    starts: Int32[Tensor, "rows listed"]
    blocks: Int32[Tensor, "rows listed"]  # block << 1 | negative
    bounds: Int32[Tensor, "rows tiles 2"]

    @classmethod
    def of(
        cls, placements: Int32[Tensor, "rows blocks"], block: int, cols: int, tile: int
    ) -> SortedRuns:
        rows, num_blocks = placements.shape
        edges = torch.arange(0, cols, tile, device=placements.device, dtype=torch.int32)
        ids = torch.arange(num_blocks, device=placements.device, dtype=torch.int32)
        lists = [_sorted_row(placements[row], ids, block, cols) for row in range(rows)]
        longest = max(len(starts) for starts, _ in lists)
        padded = [_pad(part, longest) for pair in lists for part in pair]
        starts, blocks = torch.stack(padded[0::2]), torch.stack(padded[1::2])
        # Runs [first, last) of the list have a start in (edge - block, edge + tile).
        first = torch.searchsorted(starts, (edges - block + 1).repeat(rows, 1))
        last = torch.searchsorted(starts, (edges + tile).clamp(max=cols).repeat(rows, 1))
        return cls(starts, blocks, torch.stack([first, last], dim=2).int().contiguous())


def _sorted_row(
    placements: Int32[Tensor, " blocks"], ids: Int32[Tensor, " blocks"], block: int, cols: int
) -> tuple[Int32[Tensor, " listed"], Int32[Tensor, " listed"]]:
    # The sort is stable, so that sums run in order of block within a start on every device.
    starts, order = (placements >> 1).sort(stable=True)
    blocks = ids[order] << 1 | placements[order] & 1
    wraps = starts > cols - block
    return torch.cat([starts[wraps] - cols, starts]), torch.cat([blocks[wraps], blocks])


def _pad(part: Int32[Tensor, " listed"], length: int) -> Int32[Tensor, " longest"]:
    filler = torch.iinfo(torch.int32).max
    return torch.nn.functional.pad(part, (0, length - len(part)), value=filler)


class PieceLayout:
    """Finds each block of a vector that lies in several tensors.

    Blocks within one tensor are read where they are. Blocks that straddle two or more, at most
    one per tensor, are first copied together into a staging buffer.
    """

    def __init__(self, lengths: tuple[int, ...], block: int, device: torch.device) -> None:
        self.block = block
        self.device = device
        ends = torch.tensor(list(accumulate(lengths)), device=device)
        firsts = ends - torch.tensor(lengths, device=device)
        dim = sum(lengths)
        begins = torch.arange(0, dim, block, device=device)
        lasts = (begins + block).clamp(max=dim) - 1
        self.piece = torch.searchsorted(ends, begins, right=True)
        self.shift = begins - firsts[self.piece]
        straddles = torch.searchsorted(ends, lasts, right=True) != self.piece
        # The place of each straddling block in the staging buffer; -1 for all others.
        self.slot = torch.where(straddles, straddles.cumsum(dim=0) - 1, -1)
        lanes = begins[straddles][:, None] + torch.arange(block, device=device)
        # Lanes past the end of the vector are never read: a negative piece leaves them out.
        self.lane_piece = torch.searchsorted(ends, lanes, right=True)
        self.lane_piece[lanes >= dim] = -1
        self.lane_shift = lanes - firsts[self.lane_piece]
        self._seen: tuple[tuple[int, int], ...] = ()
        self._found = torch.empty(0)

    def addresses(self, pieces: list[Float[Tensor, "n _"]]) -> Int64[Tensor, "n blocks"]:
        """Where in memory each block of each vector starts."""
        like, count = pieces[0], pieces[0].shape[0]
        table = self._addresses_and_strides(pieces)
        # The staging buffer lives as long as this layout: the kernel that reads it comes later.
        self._staging = torch.empty(
            count, len(self.lane_piece), self.block, dtype=like.dtype, device=self.device
        )
        sizes = {"COUNT": len(pieces), "BYTES": like.element_size(), "SPAN": SPAN}
        per_vector = self.lane_piece.numel()
        if per_vector:
            launch(
                programs.copy_lanes, (-(-per_vector // SPAN), count),
                self._staging, table, self.lane_piece, self.lane_shift, per_vector, **sizes,
            )  # fmt: skip
        found = torch.empty(count, len(self.piece), dtype=torch.int64, device=self.device)
        launch(
            programs.find_blocks, (-(-len(self.piece) // SPAN), count),
            found, table, self.piece, self.shift, self.slot, len(self.piece),
            self._staging.data_ptr(), len(self.lane_piece) * self.block,
            BLOCK=self.block, **sizes,
        )  # fmt: skip
        return found

    def _addresses_and_strides(
        self, pieces: list[Float[Tensor, "n _"]]
    ) -> Int64[Tensor, "2 pieces"]:
        seen = tuple((piece.data_ptr(), piece.stride(0)) for piece in pieces)
        if seen != self._seen:  # gradients often stay where they are from round to round
            columns = list(zip(*seen, strict=True))
            self._found = torch.tensor(columns).to(self.device, non_blocking=True)
            self._seen = seen
        return self._found
