"""FetchSGD, Algorithm 1 of the paper: clients send sketches; the server works inside the sketch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fetchsgd.grids import Deliver, Update, exactly
from fetchsgd.methods.base import State, require_range
from fetchsgd.sketch import CountSketch
from fetchsgd.vector import SparseVector

ONE_ROW = (
    "method.error_reset = 'subtract' diverges with one row: all coordinates of a cell tie, and "
    "each of them subtracts the whole cell; use 'zero', or three or more rows"
)


@dataclass(frozen=True)
class FetchSGD:
    """Lines 7 to 14 of Algorithm 1.

    error_reset: what line 14 does to the cells of what is sent. "zero" clears them, as the paper's
        experiments do; "subtract" is the line as written, which diverges with one row.
    mask_momentum: also clear those cells of the momentum (momentum factor masking).
    lr_position: "inside", in front of the momentum as in line 12, or "outside", at the update.
    """

    dim: int
    k: int
    cols: int
    rows: int = 1
    momentum: float = 0.9
    error_reset: Literal["zero", "subtract"] = "zero"
    mask_momentum: bool = True
    lr_position: Literal["inside", "outside"] = "inside"
    block: int = 0  # 0 chooses
    sketch_seed: int = 0
    sketch: CountSketch = field(init=False, repr=False, compare=False)  # S and U

    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        if self.error_reset == "subtract" and self.rows == 1:
            warnings.warn(ONE_ROW, stacklevel=3)
        object.__setattr__(
            self,
            "sketch",
            CountSketch(self.dim, self.rows, self.cols, self.sketch_seed, self.block or None),
        )

    @property
    def notes(self) -> list[str]:
        notes = [ONE_ROW] if self.error_reset == "subtract" and self.rows == 1 else []
        if self.numbers_up >= self.dim:
            notes.append(
                f"the table ({self.rows} x {self.cols} cells) is no smaller than the model "
                f"({self.dim} weights): clients send at least as much as without compression"
            )
        return notes

    def init(self, device: torch.device) -> State:
        return State(self.sketch.zeros(device), self.sketch.zeros(device))  # line 1

    def compress(self, vectors: Tensor | list[Tensor]) -> Tensor:
        return self.sketch.sketch(vectors)  # line 8

    @property
    def numbers_up(self) -> int:
        return self.sketch.num_cells

    def step(
        self, mean: Tensor, state: State, rate: float, deliver: Deliver = exactly
    ) -> tuple[Update, State]:
        inside, outside = (rate, 1.0) if self.lr_position == "inside" else (1.0, rate)
        momentum = self.momentum * state.momentum + mean  # line 11
        error = inside * momentum + state.error  # line 12
        found = self.sketch.top_k(error, self.k, check_finite=False)  # line 13
        update = deliver(found * outside)
        assert isinstance(update, SparseVector)
        if deliver is exactly:
            sent, left = self.sketch.sketch(found), error.new_zeros(())
        else:
            given = update * (1 / outside) if outside else found
            sent, left = self.sketch.sketch(given), self._left(found, given)
        if self.error_reset == "zero":  # line 14
            error = torch.where(sent != 0, left, error)
        else:
            error = error - sent
        if self.mask_momentum:
            momentum = momentum.masked_fill(sent != 0, 0)
        return update, State(momentum, error)

    def _left(self, found: SparseVector, given: SparseVector) -> Tensor:
        """What rounding leaves in the cells that are cleared.

        With one row the coordinates of a cell have all found the same, so they share one remainder:
        it must return to the cell once, not as often as it was found.
        """
        rest, signs = found.values - given.values, found.values.sign()
        left = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, rest))
        if self.rows > 1:
            return left
        times = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, signs)).abs()
        return left / times.clamp(min=1)
