"""FetchSGD, Algorithm 1 of the paper: clients send sketches; the server works inside the sketch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fetchsgd.methods.base import State, Update, require_range
from fetchsgd.sketch import CountSketch

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

    def step(self, mean: Tensor, state: State, rate: float) -> tuple[Update, State]:
        sketch = self.sketch
        inside, outside = (rate, 1.0) if self.lr_position == "inside" else (1.0, rate)
        momentum = self.momentum * state.momentum + mean  # line 11
        error = inside * momentum + state.error  # line 12
        update = sketch.top_k(error, self.k, check_finite=False)  # line 13
        sent = sketch.sketch(update)
        if self.error_reset == "zero":  # line 14
            error = error.masked_fill(sent != 0, 0)
        else:
            error = error - sent
        if self.mask_momentum:
            momentum = momentum.masked_fill(sent != 0, 0)
        return update * outside, State(momentum, error)
