"""For every client of a cohort: how often each sum of steps occurs among the coordinates it fetches.

One walk back through the log serves all: add its updates up from the newest to the oldest, and each time
that a client's version is reached, the sums so far are what that client fetches. The histogram is carried
along, so a step of the walk costs what the update has entries, not what the model has weights.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from fetchsgd.downloads.step_log import StepLog
from fetchsgd.downloads.walk_loops import add_update

SYMBOLS = 256


def sum_histograms(
    log: StepLog, held: list[int], steps: Int32[Tensor, " dim"]
) -> Int64[Tensor, "n 256"]:
    """A row for each client, over the bucket symbols of `fetchsgd.wire` (0 is a sum of zero)."""
    versions = sorted(set(held), reverse=True)
    walked = [version for version in versions if version >= log.oldest and version > 0]
    # Row i holds what changes between the versions i - 1 and i of the walk; the last, all of n.
    change = torch.zeros(len(walked) + 1, SYMBOLS, dtype=torch.int32, device=steps.device)
    _walk_back(log, walked, change)
    if len(walked) < len(versions):
        everywhere = torch.arange(log.dim, device=steps.device)
        _add(torch.zeros_like(steps), change[-1], everywhere, steps)
    counts = change.long()
    counts[:-1] = counts[:-1].cumsum(dim=0)
    counts[:, 0] += log.dim
    row = {version: i for i, version in enumerate(walked)}
    return counts[torch.tensor([row.get(version, len(walked)) for version in held])]


def _walk_back(log: StepLog, walked: list[int], change: Int32[Tensor, "n 256"]) -> None:
    if not walked:
        return
    total = torch.zeros(log.dim, dtype=torch.int32, device=change.device)
    slot = 0
    for entry in reversed(log.entries):
        while entry.version <= walked[slot]:
            slot += 1
            if slot == len(walked):
                return
        _add(total, change[slot], entry.indices, entry.steps)


def _add(
    total: Int32[Tensor, " dim"],
    change: Int32[Tensor, " 256"],
    indices: Int64[Tensor, " n"],
    steps: Int32[Tensor, " n"],
) -> None:
    """Add an update to the sums, and what that does to their histogram to `change`, in place."""
    if total.is_cuda:
        from fetchsgd.downloads.walk_programs import SPAN, add_update_on_gpu

        if len(indices):
            add_update_on_gpu[(-(-len(indices) // SPAN),)](
                total, change, indices, steps, len(indices), SPAN=SPAN
            )
    else:
        arrays: list[np.ndarray] = [t.numpy() for t in (total, change, indices, steps)]
        add_update(*arrays)
