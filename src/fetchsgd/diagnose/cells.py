"""Which coordinates share a cell, in a sketch of one row."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from fetchsgd.sketch import CountSketch


class Cells:
    """Coordinates in order of their cells. To look one up does not wait for the device."""

    def __init__(self, sketch: CountSketch, device: torch.device) -> None:
        assert sketch.rows == 1
        # U of a table of numbers, but for its signs, is where each coordinate lies.
        numbers = torch.arange(1.0, sketch.cols + 1, device=device)[None]
        self.cells = sketch.estimate(numbers).abs().long() - 1
        counts = self.cells.bincount(minlength=sketch.cols)
        self.width = int(counts.max())
        self.ends = counts.cumsum(0)
        self.order = self.cells.argsort(stable=True)
        self.steps = torch.arange(self.width, device=device)

    def beside(
        self, coordinate: Int64[Tensor, " 1"]
    ) -> tuple[Int64[Tensor, " n"], Bool[Tensor, " n"]]:
        """Distinct coordinates, and which are in the same cell: all of these are among them."""
        cell = self.cells[coordinate]
        # As many as the fullest cell holds, back from the end of this one, and round the corner.
        places = (self.ends[cell] - 1 - self.steps) % len(self.order)
        at = self.order[places]
        return at, self.cells[at] == cell
