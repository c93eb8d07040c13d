"""What a round frees stays with the process: the next one does not fetch it from the system."""

import platform
import subprocess
import sys

import pytest

from fetchsgd.simulation.heap import USERS, keep_freed_memory

PROGRAM = """
import resource, torch
from fetchsgd.simulation.heap import keep_freed_memory
assert keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(1 << 20) for _ in range(8)]  # 32 MB, which glibc would give back
    del parts
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_memory_that_was_freed_is_kept():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100


@pytest.mark.parametrize("name", USERS)
def test_what_the_user_wants_goes_first(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory.__wrapped__()
