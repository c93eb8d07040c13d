"""The sketch by permutation in plain torch: slow, short, on any device.

Within a group no two coordinates share a cell, so a group is added at once, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from fetchsgd.sketch.kernels.pieces import slices
from fetchsgd.sketch.kernels.reference import ReferenceKernels, mark
from fetchsgd.sketch.permutation import Permutation, locate


class PermutedReference(ReferenceKernels):
    """Every operation of the sketch, straight from its definition."""

    hash: Permutation  # type: ignore[assignment]

    def __init__(self, hash: Permutation, device: torch.device) -> None:
        self.hash = hash
        self.device = device

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        h = self.hash
        halves = torch.zeros(
            2, len(pieces[0]), h.rows, h.cols, dtype=torch.float32, device=self.device
        )
        for begin, piece in slices(pieces, first):
            for at, length in self._within_groups(begin, piece.shape[1]):
                indices = torch.arange(begin + at, begin + at + length, device=self.device)
                values = piece[:, at : at + length].float()
                tables = halves[int(begin + at >= h.half)]
                for row, (cells, signs) in enumerate(self._located(indices)):
                    tables[:, row, cells] += values * signs
        return halves[0] + halves[1]

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        h = self.hash
        table = torch.zeros(h.rows, h.cols, dtype=torch.float32, device=self.device)
        span = h.width * h.block
        counts = torch.unique_consecutive(indices // span, return_counts=True)[1].tolist()
        for part, added in zip(indices.split(counts), values.split(counts), strict=True):
            for row, (cells, signs) in enumerate(self._located(part)):
                table[row, cells] += added * signs
        return table

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        marks = torch.zeros(
            self.hash.rows, self.hash.cols + 1, dtype=torch.bool, device=self.device
        )
        for row, (cells, _) in zip(marks, self._located(indices), strict=True):
            mark(row, cells, values)
        return marks[:, :-1]

    def _located(self, indices: Int64[Tensor, " n"]) -> Iterator[tuple[Tensor, Tensor]]:
        for row in range(self.hash.rows):
            yield locate(self.hash, indices, row)

    def _within_groups(self, first: int, length: int) -> Iterator[tuple[int, int]]:
        """Starts and lengths of the parts of a slice, cut where a new group begins."""
        span = self.hash.width * self.hash.block
        at = 0
        while at < length:
            part = min(span - (first + at) % span, length - at)
            yield at, part
            at += part
