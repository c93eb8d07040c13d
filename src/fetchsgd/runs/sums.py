"""What is recorded of sums modulo 2^b: the step, what wrapped around, and what was not used."""

from __future__ import annotations

import torch
from torch import Tensor

from fetchsgd.runs.checkpoint import Tensors
from fetchsgd.runs.folder import Line
from fetchsgd.server.rounds import Merged

# Summed up over rounds; cells of sums, but for the last two.
COUNTS = ("cells", "wrapped", "estimated", "sent", "clipped", "rounds", "unused")


class SumsRecord:
    """Looks at the sums of a run; nothing waits for the device until a line is written.

    counted: whether wraps are known, as in simulation, and not only estimated.
    """

    def __init__(self, device: torch.device, counted: bool = True) -> None:
        self.counted = counted
        self.total = torch.zeros(len(COUNTS), dtype=torch.float64, device=device)
        self.before = self.total
        self.step: Tensor = torch.zeros((), dtype=torch.float64, device=device)

    def after(self, merged: Merged) -> None:
        """A round is over."""
        opened = merged.opened
        if opened is None:
            return
        self.step = opened.seen.next_step
        if len(merged.clients) == 0:
            return
        cells = opened.cells
        sent = cells * len(merged.clients)
        known = torch.tensor([cells, sent, 1.0], dtype=torch.float64).to(self.total.device)
        seen = torch.stack(
            [
                opened.wraps.double(),
                opened.seen.wrap_probability * cells,
                torch.as_tensor(merged.clipped, device=self.total.device).double(),
                (~opened.seen.usable).double(),
            ]
        )
        order = torch.stack([known[0], seen[0], seen[1], known[1], seen[2], known[2], seen[3]])
        self.total = self.total + order

    def line(self) -> Line:
        """Since the last line."""
        found = self._shares(self.total - self.before)
        self.before = self.total
        return {"sum_step": float(self.step), **found}

    def result(self) -> Line:
        """Over all rounds."""
        return self._shares(self.total)

    def _shares(self, counts: Tensor) -> Line:
        n = dict(zip(COUNTS, counts.tolist(), strict=True))
        found = {"sum_wraps_estimated": n["estimated"] / max(n["cells"], 1)}
        if self.counted:
            found["sum_wraps"] = n["wrapped"] / max(n["cells"], 1)
            found["sum_clipped"] = n["clipped"] / max(n["sent"], 1)
        return found | {"sum_unused_rounds": int(n["unused"])}

    def tensors(self) -> Tensors:
        return {"total": self.total, "before": self.before, "step": self.step}

    def restore(self, tensors: Tensors) -> None:
        device = self.total.device
        self.total, self.before, self.step = (
            tensors[name].to(device) for name in ("total", "before", "step")
        )
