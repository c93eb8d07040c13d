"""Work on a CPU, spread over as many threads as torch uses."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

# Below this many visits of a number, handing work to another thread costs more than it saves.
SERIAL_WORK = 1 << 17

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], work: int
) -> Iterator[Result]:
    """Results in the order of the tasks, from torch's number of threads, few in flight at once."""
    threads = torch.get_num_threads()
    if threads == 1 or work < SERIAL_WORK:
        yield from map(function, tasks)
        return
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        if len(waiting) == 8 * threads:
            yield waiting.popleft().result()
        waiting.append(_pool(threads).submit(function, task))
    while waiting:
        yield waiting.popleft().result()


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fetchsgd")


# A forked child inherits the pool but none of its threads. Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
