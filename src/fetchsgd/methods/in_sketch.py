"""The paper's server: momentum and error are carried inside one sketch (lines 11 to 14)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fetchsgd.methods.base import State
from fetchsgd.methods.delivery import Deliver, Delivered
from fetchsgd.methods.windowed import Send, Sent, add_and_send
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.sketch.windows import SlidingWindow, Suffixes
from fetchsgd.sketch.windows.heavy import find_heavy
from fetchsgd.vector import SparseVector


@dataclass(frozen=True)
class SketchServer:
    """Its options are those of FetchSGD. `windows` is None for a single error."""

    sketch: CountSketch
    k: int
    momentum: float
    error_reset: Literal["zero", "subtract"]
    mask_momentum: bool
    windows: SlidingWindow | None
    recovery: Literal["top_k", "threshold"]
    tau: float

    @property
    def clears_error(self) -> bool:
        return self.error_reset == "zero"

    def init(self, device: torch.device) -> State:
        momentum = self.sketch.zeros(device)  # line 1
        if self.windows is None:
            return {"momentum": momentum, "error": self.sketch.zeros(device)}
        tables, ages = self.windows.init(device)
        return {"momentum": momentum, "error": tables, "ages": ages}

    def send(
        self, mean: Tensor, state: State, rates: tuple[float, float], deliver: Deliver
    ) -> tuple[Delivered, State]:
        """Lines 11 to 14, at a rate in front of the momentum and one at the update."""
        inside, outside = rates
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
        return find_heavy(self.sketch, alone, self.k, self.tau).vector(self.sketch.dim)

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
        return self.sketch.rows == 1 and self.windows is None and self.error_reset == "zero"

    def _left(self, found: SparseVector, given: SparseVector) -> Table:
        """What rounding leaves in the cells that are cleared.

        With one row all coordinates of a cell have the same estimate, so they share one remainder:
        it must return to the cell once, not once for each of them.
        """
        rest, signs = found.values - given.values, found.values.sign()
        left = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, rest))
        if self.sketch.rows > 1:
            return left
        times = self.sketch.sketch(SparseVector.trusted(found.dim, found.indices, signs)).abs()
        return left / times.clamp(min=1)
