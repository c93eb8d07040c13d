"""Sums of processes on one machine, through memory that they share.

gloo hands a sum to threads of its own, which wake each other over TCP: on two cores that are busy a
call takes a millisecond and more, much of it time in which a core works. Here each process writes
its part into shared memory, tells the others by one byte through a socket, and adds up all parts by
itself, in the order of the ranks. So all have the same bits, and no thread is needed.

While a process waits it sleeps, and can be stopped; a socket that closes says that another process
has ended.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

PART = 1 << 20  # bytes that are summed at once: they stay in a core's own cache
SLOTS = 2  # written to in turn, since others may still read the last part
MOST = 16  # processes: each adds up all parts, so their work grows with their number
BOOT = Path("/proc/sys/kernel/random/boot_id")

Say = Callable[[str], list[str]]  # what each process says, in their order
# How parts are put together: torch.add or torch.maximum.
Join = Callable[..., Tensor]


class Near:
    """Connected processes; `sockets` are to the others, in the order of their ranks."""

    def __init__(self, rank: int, sockets: list[socket.socket], memory: int) -> None:
        self._sockets = sockets
        size = len(sockets) + 1
        self._map = mmap.mmap(memory, SLOTS * size * PART)  # pages are had when they are used
        parts = torch.frombuffer(self._map, dtype=torch.uint8).view(SLOTS, size, PART)
        self._parts = [list(slot) for slot in parts]
        self._rank, self._turn = rank, 0

    def join(self, tensor: Tensor, how: Join) -> None:
        """Put all processes' tensors together, in place. OSError if another has ended."""
        flat = tensor.view(-1)
        at_once = PART // tensor.element_size()
        for start in range(0, len(flat), at_once):
            self._join(flat[start : start + at_once], how)

    def _join(self, part: Tensor, how: Join) -> None:
        bytes = part.numel() * part.element_size()
        slot = [own[:bytes].view(part.dtype) for own in self._parts[self._turn]]
        self._turn = (self._turn + 1) % SLOTS
        slot[self._rank].copy_(part)
        for other in self._sockets:
            other.sendall(b"+")
        for other in self._sockets:
            if not other.recv(1):
                raise ConnectionError("another process has closed its socket")
        # Whoever writes into this slot again has heard of us in the next turn: we are done then.
        how(slot[0], slot[1], out=part)
        for more in slot[2:]:
            how(part, more, out=part)


def meet(rank: int, size: int, say: Say, patience: float) -> Near | None:
    """The processes of a run, if they are all on this machine; None if any of them is not."""
    with ExitStack() as until_met:
        listening, address = _listener(until_met)
        if not 1 < size <= MOST or not _agree(say, address is not None and BOOT.read_text()):
            return None
        addresses = say(address or "")
        sockets: dict[int, socket.socket] = {}
        try:
            for lower in range(rank):
                sockets[lower] = _connected(addresses[lower], patience)
                sockets[lower].sendall(bytes([rank]))
            reached = True
        except OSError:  # as from within another container
            reached = False
        if listening is None or not _agree(say, reached and "reached"):
            for other in sockets.values():
                other.close()
            return None
        listening.settimeout(patience)
        while len(sockets) < size - 1:
            other, _ = listening.accept()
            other.settimeout(patience)
            sockets[other.recv(1)[0]] = other
        memory = _shared_memory(rank, size, sockets)
        until_met.callback(os.close, memory)
        return Near(rank, [sockets[other] for other in sorted(sockets)], memory)


def _agree(say: Say, word: str | bool) -> bool:
    """Whether all processes say the same word, and none says no."""
    said = say(str(word))
    return str(False) not in said and len(set(said)) == 1


def _listener(until_met: ExitStack) -> tuple[socket.socket | None, str | None]:
    """Where processes of higher rank find us, if they are this user's; None where none can."""
    if not hasattr(os, "memfd_create") or not BOOT.exists():
        return None, None
    folder = until_met.enter_context(tempfile.TemporaryDirectory(prefix="fetchsgd-"))
    listening = until_met.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        listening.bind(f"{folder}/near")
        listening.listen(256)
    except OSError:  # such as a folder whose name is too long for a socket
        return None, None
    return listening, f"{folder}/near"


def _connected(address: str, patience: float) -> socket.socket:
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.settimeout(patience)
    other.connect(address)
    return other


def _shared_memory(rank: int, size: int, sockets: dict[int, socket.socket]) -> int:
    """Its file, which has no name: it is gone when the last process is."""
    if rank == 0:
        memory = os.memfd_create("fetchsgd")
        os.truncate(memory, SLOTS * size * PART)
        for other in sockets.values():
            socket.send_fds(other, [b"m"], [memory])
        return memory
    _, files, _, _ = socket.recv_fds(sockets[0], 1, 1)
    return files[0]
