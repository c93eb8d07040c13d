"""Memory that one round frees, kept for the next.

glibc gives what lies free at the end of its heap back to the system, and how much that is depends
on chance: some runs lost the memory of a pass after every round and had it filled with zeros in the
next, for a quarter of their time. A simulation does the same again and again, so it keeps it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

KEPT = 1 << 28  # bytes at the end of the heap, at most
OWN = 1 << 25  # bytes from which a tensor has memory of its own, which is always given back
# glibc's names for both, in malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# By which users say what they want.
USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache  # once is enough, for the whole process
def keep_freed_memory() -> bool:
    """Whether it could be asked for: with glibc, unless the user has chosen something else."""
    if any(name in os.environ for name in USERS):
        return False
    mallopt = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "mallopt", None)
    if mallopt is None:
        return False
    # Setting one stops glibc from moving both; the second is as far as it would have come itself.
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, OWN))
