"""Runs something once for each hostile message, and sees that it stays within bounds.

The bound on memory is the kernel's: the process may grow by no more than ROOM beyond what it took
after warming up, so that a message that asks for more ends in a MemoryError, which is a failure. A
sample is also measured. Time is that of the processor, so that a busy machine matters little. It
does where the machine itself is one of many on another: a process may be charged for time that it
was not given. So what seems slow is tried again, and the least counts.
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

TRIED_AGAIN, TIMES = 0.01, 5  # seconds from which on, and how often

# Makes a message and tries it; returns it, and how to try it again.
One = Callable[[], tuple[bytes, Callable[[], object]]]


@dataclass(frozen=True)
class Worst:
    """Of all messages."""

    messages: int
    seconds: float  # the least of several tries
    seconds_at_first: float
    memory: float  # as a part of what the message's length allows


def within_bounds(one: One, count: int, seconds: float) -> Worst:
    """So many messages, or as many as the seconds allow; AssertionError beyond a bound."""
    for _ in range(WARMING_UP):
        one()
    gc.collect()
    gc.freeze()  # walking through all that was imported is not what a message costs
    slowest, at_first, most, done = 0.0, 0.0, 0.0, WARMING_UP
    end = time.monotonic() + seconds
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM, before[1]))
    try:
        while done < count and (done % 256 or time.monotonic() < end):
            if done % SAMPLED == 0:
                most = max(most, _memory_of(one))
            else:
                first, least = _seconds_of(one)
                at_first, slowest = max(at_first, first), max(slowest, least)
            done += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        gc.unfreeze()
    assert slowest <= SLOWEST, f"a message took {slowest:.3f} s"
    assert most <= 1, f"a message took {most:.2f} times the memory that its length allows"
    return Worst(done, slowest, at_first, most)


def _seconds_of(one: One) -> tuple[float, float]:
    """Of the first try, and the least of all."""
    began = time.process_time()
    _, again = one()
    first = least = time.process_time() - began
    for _ in range(TIMES if first > TRIED_AGAIN else 0):
        began = time.process_time()
        again()
        least = min(least, time.process_time() - began)
    return first, least


def _memory_of(one: One) -> float:
    """The peak of what Python and numpy take, as a part of what the message allows."""
    tracemalloc.start()
    try:
        message, _ = one()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / (PER_BYTE * len(message) + BEYOND)


def _address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
