"""Slow links on one machine: a network namespace for each client, and tc to limit both directions.

    with Links(4, up="1mbit", down="10mbit") as links:
        links.inside(0)     # words before a command that is to run at the far end of the first link
        links.traffic()     # what has passed so far, by the kernel's own counters

The near ends stay where they are made, all with the address `HOST`. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HOST = "198.18.0.1"  # 198.18.0.0/15 is set aside for benchmarks (RFC 2544)
MOST = 250  # links, one address each
PREFIX = "fetchsgd-"  # of namespaces; the process that made them follows
# On average no faster than the rate, never more than 4 kB at once; what would have to wait for
# longer than 0.4 s is dropped, and TCP sends it again.
LIMIT = ("burst", "32kbit", "latency", "400ms")
HEADER_BYTES = 66  # Ethernet 14, IP 20, TCP 20 with time stamps 12


class LinksError(Exception):
    """Such links cannot be made here; the message says why."""


@dataclass(frozen=True)
class Passed:
    """What has passed in one direction: whole frames, with every header and acknowledgement."""

    bytes: int
    packets: int

    def __sub__(self, before: Passed) -> Passed:
        return Passed(self.bytes - before.bytes, self.packets - before.packets)

    @property
    def contents(self) -> int:
        """Without the headers of Ethernet, IP and TCP."""
        return self.bytes - HEADER_BYTES * self.packets


@dataclass(frozen=True)
class Traffic:
    """Of all links together. Up is from a client to the server."""

    up: Passed
    down: Passed

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.up - before.up, self.down - before.down)


class Links:
    """As many links as clients, each with its own limit; removed at the end."""

    def __init__(self, count: int, up: str = "1mbit", down: str = "10mbit") -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"there can be 1 to {MOST} links, got {count}")
        self.count, self.up, self.down = count, up, down

    def __enter__(self) -> Links:
        require()
        sweep()
        try:
            for link in range(self.count):
                self._make(link)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def inside(self, link: int) -> list[str]:
        """Words before a command that runs at the client's end."""
        return ["ip", "netns", "exec", namespace(link)]

    def traffic(self) -> Traffic:
        """Since the links were made."""
        names = [near_end(link) for link in range(self.count)]
        return Traffic(
            Passed(sum(map(received_bytes, names)), sum(map(received_packets, names))),
            Passed(sum(map(sent_bytes, names)), sum(map(sent_packets, names))),
        )

    def _make(self, link: int) -> None:
        near, far, there = near_end(link), "eth0", f"198.18.0.{link + 2}"
        run("ip", "netns", "add", namespace(link))
        run("ip", "link", "add", near, "type", "veth", "peer", far, "netns", namespace(link))
        for words, device, own, other, rate in (
            ([], near, HOST, there, self.down),
            (self.inside(link), far, there, HOST, self.up),
        ):
            # One packet is one frame: the kernel would otherwise count several under one header.
            run(*words, "ip", "link", "set", device, "gso_max_segs", "1")
            run(*words, "ip", "address", "add", own, "peer", other, "dev", device)
            run(*words, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, *LIMIT)
            run(*words, "ip", "link", "set", device, "up")
        run(*self.inside(link), "ip", "link", "set", "lo", "up")

    def remove(self) -> None:
        """Namespaces and links, also half-made ones."""
        for link in range(self.count):
            clear(near_end(link), namespace(link))


def namespace(link: int) -> str:
    return f"{PREFIX}{os.getpid()}-{link}"


def near_end(link: int, process: int | None = None) -> str:
    """The name of a network device, which has at most 15 characters."""
    return f"fs{os.getpid() if process is None else process}-{link}"


def clear(device: str, name: str) -> None:
    """Remove a link and its namespace, as far as they exist."""
    if Path("/sys/class/net", device).exists():
        run("ip", "link", "delete", device)
    if Path("/run/netns", name).exists():
        run("ip", "netns", "delete", name)


def sweep() -> None:
    """Remove what a benchmark that was killed has left behind."""
    for path in Path("/run/netns").glob(f"{PREFIX}*"):
        found = re.fullmatch(rf"{PREFIX}(\d+)-(\d+)", path.name)
        if found and not Path("/proc", found[1]).exists():
            clear(near_end(int(found[2]), int(found[1])), path.name)


def require() -> None:
    """Raise LinksError where links cannot be made."""
    if os.geteuid() != 0:
        raise LinksError("network namespaces need root; run this with sudo")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise LinksError(f"there is no program {tool!r} here; install iproute2")
    probe = Links(1)
    try:
        probe._make(0)
    finally:
        probe.remove()


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LinksError(f"`{' '.join(words)}` fails here: {done.stderr.strip()}")


def received_bytes(device: str) -> int:
    return _counter(device, "rx_bytes")


def received_packets(device: str) -> int:
    return _counter(device, "rx_packets")


def sent_bytes(device: str) -> int:
    return _counter(device, "tx_bytes")


def sent_packets(device: str) -> int:
    return _counter(device, "tx_packets")


def _counter(device: str, name: str) -> int:
    return int(Path("/sys/class/net", device, "statistics", name).read_text())
