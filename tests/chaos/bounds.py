"""Runs something once for each hostile message, and sees that it stays within bounds.

The bound on memory is the kernel's: the process may grow by no more than ROOM beyond what it took
after warming up, so that a message that asks for more ends in a MemoryError, which is a failure. A
sample is also measured. Time is that of the processor, so that a busy machine does not matter.
"""

from __future__ import annotations

import gc
import resource
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.mutations import MOST_BYTES

SLOWEST = 0.1  # seconds
PER_BYTE, BEYOND = 600, 2_000_000  # of memory, as tests/wire has it
ROOM = PER_BYTE * MOST_BYTES + BEYOND + (32 << 20)  # and what an allocator takes at a time
SAMPLED = 500  # every so many messages the memory is measured as well as bounded
WARMING_UP = 300  # messages: allocators take what they keep

One = Callable[[], bytes]  # makes a message and tries it


@dataclass(frozen=True)
class Worst:
    """Of all messages."""

    messages: int
    seconds: float
    memory: float  # as a part of what the message's length allows


def within_bounds(one: One, count: int, seconds: float) -> Worst:
    """So many messages, or as many as the seconds allow; AssertionError beyond a bound."""
    for _ in range(WARMING_UP):
        one()
    gc.collect()
    gc.freeze()  # walking through all that was imported is not what a message costs
    slowest, most, done = 0.0, 0.0, WARMING_UP
    end = time.monotonic() + seconds
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM, before[1]))
    try:
        while done < count and (done % 256 or time.monotonic() < end):
            if done % SAMPLED == 0:
                most = max(most, _memory_of(one))
            else:
                began = time.process_time()
                one()
                slowest = max(slowest, time.process_time() - began)
            done += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        gc.unfreeze()
    assert slowest <= SLOWEST, f"a message took {slowest:.3f} s"
    assert most <= 1, f"a message took {most:.2f} times the memory that its length allows"
    return Worst(done, slowest, most)


def _memory_of(one: One) -> float:
    """The peak of what Python and numpy take, as a part of what the message allows."""
    tracemalloc.start()
    try:
        message = one()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / (PER_BYTE * len(message) + BEYOND)


def _address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
