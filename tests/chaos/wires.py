"""Links to network namespaces that lose, hold back, reorder and reset what passes.

    with Wires(2) as wires:
        wires.inside(0)                              words before a command at the far end
        wires.weather[0] = Weather(drop=0.1)         from now on, both ways

A link is a pair of TUN devices, one here and one in a namespace of its own: whatever the kernel
sends into one is read by a thread of this process, which writes it into the other, later, or not at
all. So everything happens to whole IP packets, below TCP, which has to cope with it as on a real
network. A reset is forged for both ends, as middleboxes do it. Needs root, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType

from chaos.packets import forged_resets

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "links"))
import network

# 198.18.0.0/15 is set aside for tests (RFC 2544); benchmarks/links has 198.18.0. A part for each
# process, so that two of them do not take each other's packets.
SUBNET = f"198.19.{os.getpid() % 256}"
HOST = f"{SUBNET}.1"
TUN, SET_NAME = 0x1001, 0x400454CA  # IP packets without anything before them; TUNSETIFF
LATE = (0.02, 0.3)  # seconds by which a packet is held back, so that others overtake it
MOST_WAITING = 2000  # packets; what stalls beyond that is lost, as in a router's queue


@dataclass(frozen=True)
class Weather:
    """What happens to the packets of a link, in both directions."""

    drop: float = 0.0  # share that is lost
    late: float = 0.0  # share that later ones overtake
    reset: float = 0.0  # share in whose place both ends get a reset
    stalled: bool = False  # all wait until this is over
    cut: bool = False  # all are lost


class Wires:
    """As many links as clients; removed at the end."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count, self.random = count, Random(f"wires {seed}")
        self.weather = [Weather()] * count
        self.counts: Counter[str] = Counter()  # of packets
        self.across: dict[int, tuple[int, int]] = {}  # by descriptor: its link, and the other end
        self.late: list[tuple[float, int, int, bytes]] = []  # when, a number, where, what
        self.waiting: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Wires:
        require()
        network.sweep()
        try:
            for link in range(self.count):
                self._make(link)
        except BaseException:
            self._remove()
            raise
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.done.set()
        self.thread.join()
        self._remove()

    def inside(self, link: int) -> list[str]:
        """Words before a command that runs at the far end."""
        return ["ip", "netns", "exec", network.namespace(link)]

    def _make(self, link: int) -> None:
        near, far, there = network.near_end(link), f"{network.near_end(link)}f", far_end(link)
        network.run("ip", "netns", "add", network.namespace(link))
        ends = [_tun(near), _tun(far)]
        self.across |= {ends[0]: (link, ends[1]), ends[1]: (link, ends[0])}
        network.run("ip", "link", "set", far, "netns", network.namespace(link))
        for words, device, own, other in (
            ([], near, HOST, there),
            (self.inside(link), far, there, HOST),
        ):
            network.run(*words, "ip", "address", "add", own, "peer", other, "dev", device)
            network.run(*words, "ip", "link", "set", device, "up")
        network.run(*self.inside(link), "ip", "link", "set", "lo", "up")

    def _remove(self) -> None:
        for descriptor in self.across:
            os.close(descriptor)  # the devices end with it
        self.across.clear()
        for link in range(self.count):
            network.clear(network.near_end(link), network.namespace(link))

    def _carry(self) -> None:
        """Until the end."""
        poll = select.poll()
        for descriptor in self.across:
            poll.register(descriptor, select.POLLIN)
        while not self.done.is_set():
            due = self.late[0][0] - time.monotonic() if self.late else 0.05
            for descriptor, _ in poll.poll(1000 * min(max(due, 0.0), 0.05)):
                with suppress(OSError):
                    self._pass(descriptor, os.read(descriptor, 1 << 16))
            self._release()

    def _pass(self, descriptor: int, packet: bytes) -> None:
        link, other = self.across[descriptor]
        weather, chance = self.weather[link], self.random.random()
        if weather.cut:
            self.counts["cut off"] += 1
        elif weather.stalled:
            kept = len(self.waiting[link]) < MOST_WAITING
            self.counts["stalled" if kept else "dropped"] += 1
            if kept:
                self.waiting[link].append((other, packet))
        elif chance < weather.drop:
            self.counts["dropped"] += 1
        elif chance < weather.drop + weather.reset and (forged := forged_resets(packet)):
            self.counts["reset"] += 1
            _write(other, forged[0])
            _write(descriptor, forged[1])
        elif chance > 1 - weather.late:
            self.counts["overtaken"] += 1
            when = time.monotonic() + self.random.uniform(*LATE)
            heapq.heappush(self.late, (when, self.counts["overtaken"], other, packet))
        else:
            self.counts["passed"] += 1
            _write(other, packet)

    def _release(self) -> None:
        """What has been held back for long enough."""
        while self.late and self.late[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(self.late)
            _write(other, packet)
        for link, packets in enumerate(self.waiting):
            if packets and not self.weather[link].stalled:
                for other, packet in packets:
                    _write(other, packet)
                packets.clear()


def far_end(link: int) -> str:
    """The address of a client."""
    return f"{SUBNET}.{link + 2}"


def _tun(name: str) -> int:
    """The descriptor of a new device."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, SET_NAME, struct.pack("16sH22x", name.encode(), TUN))
    return descriptor


def _write(descriptor: int, packet: bytes) -> None:
    with suppress(OSError):  # a device that is not up yet, or no longer
        os.write(descriptor, packet)


def require() -> None:
    """Raise LinksError where such links cannot be made."""
    network.require()
    try:
        os.close(_tun(f"fs{os.getpid()}-t"))
    except OSError as error:
        raise network.LinksError(f"no TUN devices here: {error.strerror}") from error
