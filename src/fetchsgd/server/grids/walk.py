"""How often each sum of steps occurs in what a client fetches, for every client of a cohort.

One walk back through the log serves all: add its updates up from the newest to the oldest, and each
time that a client's version is reached, the sums so far are what that client fetches. The histogram
is carried along, so a step of the walk costs what the update has entries, not what the model has
weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from fetchsgd.server.grids.step_log import Entry, StepLog
from fetchsgd.server.grids.walk_loops import add_update

SYMBOLS = 256


def sum_histograms(
    log: StepLog, held: list[int], steps: Int32[Tensor, " dim"]
) -> Int64[Tensor, "n 256"]:
    """A row for each client, over the bucket symbols of `fetchsgd.wire` (0 is a sum of zero)."""
    versions = sorted(set(held), reverse=True)
    walked = [version for version in versions if version >= log.oldest and version > 0]
    # Row i holds what changes between the versions i - 1 and i of the walk; the last, all of n.
    change = torch.zeros(len(walked) + 1, SYMBOLS, dtype=torch.int32, device=steps.device)
    _add_up(log.dim, _stages(log, walked), change)
    if len(walked) < len(versions):
        everything = Entry(log.newest, torch.arange(log.dim, device=steps.device), steps)
        _add_up(log.dim, [(len(walked), everything)], change)
    counts = change.long()
    counts[:-1] = counts[:-1].cumsum(dim=0)
    counts[:, 0] += log.dim
    row = {version: i for i, version in enumerate(walked)}
    rows = torch.tensor([row.get(version, len(walked)) for version in held])
    return counts[rows.to(steps.device, non_blocking=True)]


def _stages(log: StepLog, walked: list[int]) -> list[tuple[int, Entry]]:
    """The updates on the way back, each with the first row that it is part of."""
    stages, row = [], 0
    for entry in reversed(log.entries):
        while row < len(walked) and entry.version <= walked[row]:
            row += 1
        if row == len(walked):
            break
        stages.append((row, entry))
    return stages


def _add_up(dim: int, stages: list[tuple[int, Entry]], change: Int32[Tensor, "rows 256"]) -> None:
    """Add updates up; what each does to the histogram of the sums goes to its row of `change`."""
    if change.is_cuda:
        from fetchsgd.server.grids.walk_cuda import add_up

        add_up(dim, stages, change)
        return
    total = torch.zeros(dim, dtype=torch.int32).numpy()
    for row, entry in stages:
        add_update(total, change[row].numpy(), entry.indices.numpy(), entry.steps.numpy())
