"""The momentum and error of Assumption 1, as vectors beside a run that has only their sketches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fetchsgd.diagnose.cells import Cells
from fetchsgd.methods.base import WithServerError
from fetchsgd.sketch import CountSketch
from fetchsgd.vector import SparseVector


@dataclass(frozen=True, eq=False)
class Shadow:
    """u and e, along the updates that were really sent.

    With one row they are the vectors of which the method carries the sketches: S(u) = S_u and
    S(e) = S_e, whatever is cleared. With several rows a cleared cell takes a coordinate out of one
    row and leaves it in the others, so there are no such vectors; then the coordinates that are
    sent are cleared and no others, as "had we not used sketching" (Assumption 1).

    Everything is in place, for it is done in every round.
    """

    method: WithServerError
    momentum: Float32[Tensor, " dim"]  # u
    error: Float32[Tensor, " dim"]  # e; between `add` and `remove` it is q^t

    @classmethod
    def new(cls, method: WithServerError, device: torch.device) -> Shadow:
        return cls(method, *(torch.zeros(method.dim, device=device) for _ in range(2)))

    def add(self, gradient: Float32[Tensor, " dim"], inside: float) -> None:
        """Lines 11 and 12; `inside` is the rate in front of the momentum."""
        torch.add(gradient, self.momentum, alpha=self.method.momentum, out=self.momentum)
        self.error.add_(self.momentum, alpha=inside)

    def remove(self, found: SparseVector, given: SparseVector) -> None:
        """Line 14, and momentum factor masking.

        A grid gives less than was found, maybe nothing; without one, `given` is `found` itself.
        """
        if not len(found):
            return
        at, zero = found.indices, self.method.clears_error
        cleared, rest = self._cleared(found, given)
        if self._sketch.rows == 1:
            self._clear_same_cell(found, cleared)
        before = self.error[at]
        rest = torch.where(cleared, rest, before) if zero else before - given.values
        self.error[at] = rest
        if self.method.mask_momentum:
            self.momentum[at] = self.momentum[at].masked_fill_(cleared, 0)

    def _clear_same_cell(self, found: SparseVector, cleared: Bool[Tensor, " k"]) -> None:
        """Of coordinates that share a cell all are found or none, but for the last cell.

        There k may be reached in the middle, and the others are cleared with those that are found.
        """
        # Kept as one of many: to index by a number on a GPU is to wait for it.
        last = found.values.abs().argmin(dim=0, keepdim=True)
        at, is_in_cell = self._cells.beside(found.indices[last])
        clears = is_in_cell & cleared[last]
        if self.method.mask_momentum:
            self.momentum[at] = self.momentum[at].masked_fill_(clears, 0)
        if self.method.clears_error:
            self.error[at] = self.error[at].masked_fill_(clears, 0)

    @property
    def _sketch(self) -> CountSketch:
        assert self.method.sketch is not None
        return self.method.sketch

    @cached_property
    def _cells(self) -> Cells:
        return Cells(self._sketch, self.error.device)

    def _cleared(
        self, found: SparseVector, given: SparseVector
    ) -> tuple[Bool[Tensor, " k"], Float32[Tensor, " k"]]:
        """Whether what was found is cleared, and what stays of it in that case.

        With one row, where all coordinates of a cell have the same estimate, the rest returns to
        the cell once: they share it.
        """
        rest = found.values - given.values
        if given is found or self._sketch.rows > 1:
            return given.values != 0, rest
        sketch, at = self._sketch, found.indices
        signs = SparseVector.trusted(found.dim, at, found.values.sign())
        sent, sharing = (
            sketch.query(table, at) for table in (sketch.sketch(given), sketch.sketch(signs))
        )
        return sent != 0, rest / sharing.abs().clamp(min=1)
