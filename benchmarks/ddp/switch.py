"""Workers in network namespaces, all at one switch, each behind a link of limited speed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parents[1] / "links"))

from network import LinksError, clear, namespace, near_end, require, run, sweep

__all__ = ["LinksError", "Switch", "bits_a_second"]

QUEUE = ("latency", "50ms")


def bits_a_second(rate: str) -> float:
    """Of a text such as "100mbit"; 0 for "none"."""
    units = {"mbit": 1e6, "gbit": 1e9}
    return 0.0 if rate == "none" else float(rate[:-4]) * units[rate[-4:]]


class Switch:
    """workers: how many. Links have no limit until `limit` gives them one. Needs root."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.name = f"fsb{os.getpid()}"

    def __enter__(self) -> Switch:
        require()
        sweep()
        try:
            run("ip", "link", "add", self.name, "type", "bridge")
            run("ip", "link", "set", self.name, "up")
            for worker in range(self.workers):
                self._add(worker)
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

    def _add(self, worker: int) -> None:
        near, space = near_end(worker), namespace(worker)
        inside = self.inside(worker)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", near, "type", "veth", "peer", "eth0", "netns", space)
        run("ip", "link", "set", near, "master", self.name, "up")
        run(*inside, "ip", "address", "add", f"{self.address(worker)}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "link", "set", "lo", "up")

    def limit(self, rate: str) -> None:
        """Of every link, both ways, as `tc` writes it ("100mbit"); "none" takes it away."""
        kind = ("pfifo",)
        if rate != "none":
            # At once may pass a millisecond of the rate, and no less than a packet of 64 kB.
            burst = str(max(int(bits_a_second(rate) / 8 / 1000), 1 << 16))
            kind = ("tbf", "rate", rate, "burst", burst, *QUEUE)
        for worker in range(self.workers):
            for words, device in ((self.inside(worker), "eth0"), ([], near_end(worker))):
                run(*words, "tc", "qdisc", "replace", "dev", device, "root", *kind)

    def inside(self, worker: int) -> list[str]:
        """Words before a command that is to run at the end of that link."""
        return ["ip", "netns", "exec", namespace(worker)]

    def address(self, worker: int) -> str:
        return f"198.19.0.{worker + 2}"

    def remove(self) -> None:
        for worker in range(self.workers):
            clear(near_end(worker), namespace(worker))
        if Path("/sys/class/net", self.name).exists():
            run("ip", "link", "delete", self.name)
