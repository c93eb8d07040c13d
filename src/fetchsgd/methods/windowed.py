"""FetchSGD's options for a sliding window, and lines 12 to 14 of Algorithm 1 with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxtyping import Bool
from torch import Tensor

from fetchsgd.methods.base import State
from fetchsgd.methods.delivery import Delivered
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.sketch.windows import (
    Histogram,
    Overlapping,
    SlidingWindow,
    Suffixes,
    most_sketches,
)
from fetchsgd.vector import SparseVector

Form = Literal["overlapping", "histogram"]
MUCH_MEMORY = 10**9
BYTES_PER_CELL = 4
WITH_MOMENTUM = (
    "theorem 2, which method.error = 'window' follows, is for method.momentum = 0: momentum brings "
    "gradients back into the window that have left it"
)


class Sent(NamedTuple):
    """What becomes of what was found: it is sent as a grid allows, and the rest is kept."""

    delivered: Delivered
    given: SparseVector  # the same before a rate outside
    table: Table | None  # S(given), if it was needed
    cells: Bool[Tensor, "rows cols"]  # where S(given) is not zero: these are cleared
    left: Table | None  # what is left there, if anything


Send = Callable[[SparseVector], Sent]


def check_window(error: str, window: int, eps: float) -> None:
    """Refuse windows that are impossible, or that would have no effect."""
    if error == "window" and window < 1:
        raise ValueError(
            "method.window, the rounds that the window covers, must be at least 1 with "
            f"method.error = 'window', got {window}"
        )
    if error != "window" and window:
        raise ValueError(
            f"method.window has no effect unless method.error = 'window', got {window}"
        )
    if not 0 < eps < 1:
        raise ValueError(f"method.window_eps must be above 0 and below 1, got {eps}")


def check_tau(recovery: str, tau: float) -> None:
    """Refuse a threshold that is impossible, or that would have no effect."""
    if recovery == "threshold" and not 0 < tau <= 1:
        raise ValueError(
            "method.tau must be above 0 and at most 1 with method.recovery = 'threshold', "
            f"got {tau}"
        )
    if recovery != "threshold" and tau != 0:
        raise ValueError(
            f"method.tau has no effect unless method.recovery = 'threshold', got {tau}"
        )


def make_window(sketch: CountSketch, form: Form, window: int, eps: float) -> SlidingWindow:
    """The window of that form."""
    return Histogram(sketch, window, eps) if form == "histogram" else Overlapping(sketch, window)


def window_notes(windows: SlidingWindow, momentum: float, eps: float) -> list[str]:
    """Notes on large windows, and on options that the theorem does not cover."""
    notes = [WITH_MOMENTUM] if momentum else []
    table = BYTES_PER_CELL * windows.sketch.num_cells
    if windows.slots * table > MUCH_MEMORY:
        note = (
            f"the window keeps {windows.slots} error tables, {windows.slots * table / 1e9:.1f} GB"
        )
        fewer = most_sketches(windows.window, eps)
        if fewer < windows.slots:
            note += f"; method.window_form = 'histogram' keeps at most {fewer}"
        notes.append(note)
    return notes


def add_and_send(
    windows: SlidingWindow, table: Table, state: State, k: int, tau: float, send: Send, zero: bool
) -> tuple[Sent, State]:
    """Lines 12 to 14, over all sketches of the window. `zero` clears the cells of what is sent."""
    held = windows.insert(Suffixes(state["error"], state["ages"]), table)  # line 12
    found = windows.find_heavy(held, k, tau)  # line 13
    sent = send(found.vector(windows.sketch.dim))
    if zero:  # line 14
        left = held.tables.new_zeros(()) if sent.left is None else sent.left
        held = windows.clear(held, sent.cells, left)
    else:
        held = windows.update(held, found, sent.given.values)
    return sent, {"error": held.tables, "ages": held.ages}
