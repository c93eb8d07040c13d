"""FetchSGD, Algorithm 1 of the paper: clients send sketches; the server works inside the sketch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fetchsgd.methods.base import State, check_mean, require_range
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.messages import SketchMessage
from fetchsgd.methods.windowed import (
    Form,
    Send,
    Sent,
    add_and_send,
    check_tau,
    check_window,
    make_window,
    window_notes,
)
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.sketch.count_sketch import default_block
from fetchsgd.sketch.windows import SlidingWindow, Suffixes
from fetchsgd.sketch.windows.heavy import find_heavy
from fetchsgd.vector import SparseVector

# With long blocks neighbours err together: on CIFAR10 at 20 weights to a cell all runs with blocks
# of 64 and more diverged, most with 16, and none with 4 or 1 (experiments/cifar10).
SAFE_BLOCK = 4
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
    error: "vanilla" sums up what was not sent in one sketch, as the paper's experiments do;
        "window" does so over a sliding window, as theorem 2 (fetchsgd.sketch.windows says how, and
        what "subtract" then means).
    window: how many rounds it covers, I.
    window_form: "overlapping", I sketches, or "histogram", O(log I / window_eps) of them.
    recovery: "top_k", or "threshold", as in theorem 2's proof: only what makes up at least tau of
        the error's norm, and of that the k largest.
    """

    dim: int
    k: int
    cols: int
    rows: int = 1
    momentum: float = 0.9
    error_reset: Literal["zero", "subtract"] = "zero"
    mask_momentum: bool = True
    lr_position: Literal["inside", "outside"] = "inside"
    block: int = 0  # 0 chooses: at most SAFE_BLOCK, and less for small tables
    sketch_seed: int = 0
    error: Literal["vanilla", "window"] = "vanilla"
    window: int = 0
    window_form: Form = "overlapping"
    window_eps: float = 0.5
    recovery: Literal["top_k", "threshold"] = "top_k"
    tau: float = 0.0
    sketch: CountSketch = field(init=False, repr=False, compare=False)  # S and U
    windows: SlidingWindow | None = field(init=False, repr=False, compare=False, default=None)

    has_server_error: ClassVar[bool] = True
    message_kind: ClassVar[str] = "sketch"

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        if self.error_reset == "subtract" and self.rows == 1:
            warnings.warn(ONE_ROW, stacklevel=3)
        check_window(self.error, self.window, self.window_eps)
        check_tau(self.recovery, self.tau)
        block = self.block or min(default_block(self.cols), SAFE_BLOCK)
        sketch = CountSketch(self.dim, self.rows, self.cols, self.sketch_seed, block)
        object.__setattr__(self, "sketch", sketch)
        if self.error == "window":
            windows = make_window(sketch, self.window_form, self.window, self.window_eps)
            object.__setattr__(self, "windows", windows)

    @property
    def notes(self) -> list[str]:
        notes = [ONE_ROW] if self.error_reset == "subtract" and self.rows == 1 else []
        if self.sketch.num_cells >= self.dim:
            notes.append(
                f"the table ({self.rows} x {self.cols} cells) is no smaller than the model "
                f"({self.dim} weights): clients send at least as much as without compression"
            )
        if self.windows is not None:
            notes += window_notes(self.windows, self.momentum, self.window_eps)
        return notes

    @property
    def message(self) -> SketchMessage:
        return SketchMessage(self.sketch)  # line 8

    def init(self, device: torch.device) -> State:
        momentum = self.sketch.zeros(device)  # line 1
        if self.windows is None:
            return {"momentum": momentum, "error": self.sketch.zeros(device)}
        tables, ages = self.windows.init(device)
        return {"momentum": momentum, "error": tables, "ages": ages}

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        check_mean(mean, self.message.shape, check_finite)
        inside, outside = self.rates(rate)
        momentum = self.momentum * state["momentum"] + mean  # line 11
        send = partial(self._send, outside=outside, deliver=deliver)
        if self.windows is None:
            sent, error = self._vanilla(inside * momentum + state["error"], send)  # line 12
            errors = {"error": error}
        else:
            sent, errors = add_and_send(
                self.windows, inside * momentum, state, self.k, self.tau, send,
                zero=self.clears_error,
            )  # fmt: skip
        if self.mask_momentum:
            momentum.masked_fill_(sent.cells, 0)  # in place, since it was made above
        return sent.delivered, {"momentum": momentum, **errors}

    @property
    def single_error(self) -> bool:
        return self.windows is None

    @property
    def clears_error(self) -> bool:
        return self.error_reset == "zero"

    def rates(self, rate: float) -> tuple[float, float]:
        """The rate in front of the momentum, and the rate at the update."""
        return (rate, 1.0) if self.lr_position == "inside" else (1.0, rate)

    def _vanilla(self, error: Table, send: Send) -> tuple[Sent, Table]:
        """Lines 13 and 14 for a single sketch, which may be overwritten."""
        sent = send(self._find(error))
        if self.error_reset == "subtract":
            assert sent.table is not None
            return sent, error - sent.table
        if sent.left is None:
            return sent, error.masked_fill_(sent.cells, 0)
        return sent, torch.where(sent.cells, sent.left, error)

    def _find(self, error: Table) -> SparseVector:
        """Line 13."""
        if self.recovery == "top_k":
            return self.sketch.top_k(error, self.k, check_finite=False)
        alone = Suffixes(error[None], torch.ones(1, dtype=torch.int64))
        return find_heavy(self.sketch, alone, self.k, self.tau).vector(self.dim)

    def _send(self, found: SparseVector, outside: float, deliver: Deliver) -> Sent:
        delivered = deliver(found if outside == 1 else found * outside)
        if deliver.exact:
            if self._never_cancels:
                return Sent(delivered, found, None, self.sketch.touched(found), None)
            table = self.sketch.sketch(found)
            return Sent(delivered, found, table, table != 0, None)
        given = delivered.sparse * (1 / outside) if outside else found
        table = self.sketch.sketch(given)
        return Sent(delivered, given, table, table != 0, self._left(found, given))

    @property
    def _never_cancels(self) -> bool:
        """Whether only the cells of S(found) that are not zero are needed, and found tells these.

        With one row all coordinates of a cell have the same estimate, up to their signs, so their
        sum in the cell is zero only if each of them is.
        """
        return self.rows == 1 and self.windows is None and self.error_reset == "zero"

    def _left(self, found: SparseVector, given: SparseVector) -> Table:
        """What rounding leaves in the cells that are cleared.

        With one row all coordinates of a cell have the same estimate, so they share one remainder:
        it must return to the cell once, not once for each of them.
        """
        rest, signs = found.values - given.values, found.values.sign()
        left = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, rest))
        if self.rows > 1:
            return left
        times = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, signs)).abs()
        return left / times.clamp(min=1)
