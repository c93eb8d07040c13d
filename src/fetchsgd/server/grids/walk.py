"""What the sizes of downloads follow from: the sums of steps that clients of a cohort have missed.

One walk back through the log serves all: add its updates up from the newest to the oldest, and each
time that a client's version is reached, the sums so far are what that client fetches. They are
counted there and then, which takes a pass over all of them. The size grows smoothly with the rounds
that were missed, so in a large cohort this is done for some versions, and sizes between them are
interpolated: over the root of the missed rounds, where they lie nearly on a line. (Over the rounds
themselves they bend, and every interpolated size would be too small.)
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt

import torch
from jaxtyping import Int32
from torch import Tensor

from fetchsgd.server.grids.step_log import StepLog
from fetchsgd.wire.chunk_statistics import Counter, Statistics

MOST_COUNTED = 16


def missed_statistics(
    log: StepLog, held: list[int], steps: Int32[Tensor, " dim"]
) -> tuple[list[float], Statistics]:
    """For how many clients each row stands, and what the size of each row's message follows from.

    With few versions a row is one of them, the newest first. Those older than the log are last.
    """
    inside = [version for version in held if version >= log.oldest and version > 0]
    counted = some_of(sorted(set(inside), reverse=True))
    clients = weights(counted, inside, log.newest)
    counter = Counter(len(counted) + (len(inside) < len(held)), log.dim, steps.device)
    _walk(log, counted, counter)
    if len(inside) < len(held):
        clients.append(len(held) - len(inside))
        counter.add(steps)
    return clients, counter.statistics()


def some_of(versions: list[int]) -> list[int]:
    """All of few versions; of many the first, the last, and some evenly between."""
    if len(versions) <= MOST_COUNTED:
        return versions
    last = len(versions) - 1
    return [versions[round(i * last / (MOST_COUNTED - 1))] for i in range(MOST_COUNTED)]


def weights(counted: list[int], held: list[int], newest: int) -> list[float]:
    """How much each version that was counted adds to the sum over clients.

    A client between two versions is divided between them: its size is interpolated.
    """
    found = [0.0] * len(counted)
    ascending = counted[::-1]
    for version in held:
        above = bisect_left(ascending, version)
        at = len(counted) - 1 - above
        if ascending[above] == version:
            found[at] += 1
            continue
        newer, here, older = (
            sqrt(newest - v) for v in (ascending[above], version, ascending[above - 1])
        )
        share = (older - here) / (older - newer)
        found[at] += share
        found[at + 1] += 1 - share
    return found


def _walk(log: StepLog, counted: list[int], counter: Counter) -> None:
    """Count the sums of all updates after each version, from the newest version on."""
    if not counted:
        return
    missed = [entry for entry in reversed(log.entries) if entry.version > counted[-1]]
    total = torch.zeros(log.dim, dtype=torch.int32, device=counter.device)
    if missed:
        indices = torch.cat([entry.indices for entry in missed])
        steps = torch.cat([entry.steps for entry in missed])
    begin = used = 0
    for version in counted:
        end = begin
        while used < len(missed) and missed[used].version > version:
            end += len(missed[used].indices)
            used += 1
        if end > begin:
            total.index_add_(0, indices[begin:end], steps[begin:end])
        counter.add(total)
        begin = end
