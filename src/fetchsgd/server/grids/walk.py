"""What the sizes of downloads follow from: the sums of steps that each client has missed.

One walk back through the log serves all: add its updates up from the newest to the oldest, and each
time that a client's version is reached, the sums so far are what that client fetches. What a size
follows from is carried along, how often each sum occurs and how many sums of each chunk are not
zero, so a step of the walk costs what the update has entries, not what the model has weights.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int32, UInt8
from torch import Tensor

from fetchsgd.server.grids.step_log import Entry, Stage, StepLog
from fetchsgd.server.grids.walk_loops import add_update
from fetchsgd.wire.chunk_statistics import SYMBOLS, Statistics, from_chunks
from fetchsgd.wire.chunks import num_chunks, num_pages


def clients_of(versions: list[int], held: list[int]) -> list[int]:
    """How many clients fetch each row of `missed_statistics`."""
    row = {version: i for i, version in enumerate(versions)}
    found = [0] * len(versions)
    for version in held:
        # Clients older than the log fetch what those without a version do: the last row.
        found[row.get(version, len(versions) - 1)] += 1
    return found


def missed_statistics(
    log: StepLog, held: list[int], steps: Int32[Tensor, " dim"]
) -> tuple[list[int], Statistics]:
    """What the sizes follow from, for each version once; 0, the last if there, stands for all n."""
    versions = sorted(set(held), reverse=True)
    walked = [version for version in versions if version >= log.oldest and version > 0]
    rows = walked if len(walked) == len(versions) else [*walked, 0]
    # Row i holds what changes between the versions i - 1 and i of the walk; the last, all of n.
    shape = len(rows), num_pages(log.dim), SYMBOLS
    change = torch.zeros(shape, dtype=torch.int32, device=steps.device)
    chunks = torch.zeros(len(rows), num_chunks(log.dim), dtype=torch.uint8, device=steps.device)
    _add_up(log.dim, _stages(log, walked), change, chunks)
    if len(rows) > len(walked):
        everything = Entry(log.newest, torch.arange(log.dim, device=steps.device), steps)
        _add_up(log.dim, [Stage(len(walked), everything, last=True)], change, chunks)
    counts = change.long()
    counts[: len(walked)] = counts[: len(walked)].cumsum(dim=0)
    counts[:, :, 0] = 0
    return rows, from_chunks(chunks, counts)


def _stages(log: StepLog, walked: list[int]) -> list[Stage]:
    """The updates on the way back."""
    stages, row = [], 0
    for entry in reversed(log.entries):
        while row < len(walked) and entry.version <= walked[row]:
            row += 1
        if row == len(walked):
            break
        stages.append(Stage(row, entry, last=entry.version == walked[row] + 1))
    return stages


def _add_up(
    dim: int,
    stages: list[Stage],
    change: Int32[Tensor, "rows pages 256"],
    chunks: UInt8[Tensor, "rows chunks"],
) -> None:
    """Add updates up; what each does to the histogram of the sums goes to its row of `change`.

    How many sums of each chunk are not zero at the end of a row goes to `chunks`.
    """
    if change.is_cuda:
        from fetchsgd.server.grids.walk_cuda import add_up

        add_up(dim, stages, change, chunks)
        return
    total = np.zeros(dim, dtype=np.int32)
    filled = np.zeros(chunks.shape[1], dtype=np.uint8)
    for row, entry, last in stages:
        add_update(total, filled, change[row].numpy(), entry.indices.numpy(), entry.steps.numpy())
        if last:
            chunks[row] = torch.from_numpy(filled)
