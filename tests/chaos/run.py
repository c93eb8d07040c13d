"""The campaigns, one by one or all: `make chaos`.

    python tests/chaos/run.py bytes --seed 7 --count 10000000
    python tests/chaos/run.py all --out build/chaos.jsonl          the long form, an hour
    python tests/chaos/run.py all --short                          seconds each, as in CI

Each prints a line of JSON, and adds it to the file. What does not hold ends the command with the
place where it was seen; the same seed brings the same troubles again. Disks need root.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread, and so no pool of threads that a fork would lose.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from chaos import disks, hostile_bytes, kills, load  # noqa: E402

Report = dict[str, Any]


@dataclass(frozen=True)
class Campaign:
    """`work` takes a seed, how many, and a folder; `long` and `short` are how many."""

    work: Callable[[int, int, Path], Report]
    long: int
    short: int
    needs_root: bool = False


def _bytes(seed: int, count: int, folder: Path) -> Report:
    return hostile_bytes.campaign(seed, count, float("inf"), folder)


def _load(way: str) -> Callable[[int, int, Path], Report]:
    def work(seed: int, count: int, folder: Path) -> Report:
        return load.campaign(seed, count, 3, folder, way)

    return work


CAMPAIGNS = {
    "bytes": Campaign(_bytes, 10_000_000, 3000),
    "kill-simulator": Campaign(kills.simulator, 100, 2),
    "kill-server": Campaign(kills.server, 100, 2),
    "kill-clients": Campaign(kills.clients, 100, 4),
    "damage": Campaign(disks.damage, 0, 40),
    "disk": Campaign(disks.disks, 100, 4, needs_root=True),
    **{f"load-{way.replace(' ', '-')}": Campaign(_load(way), 1000, 40) for way in load.WAYS},
}
IN_SHORT = (
    "bytes",
    "kill-simulator",
    "kill-server",
    "kill-clients",
    "damage",
    "disk",
    "load-floats",
)


def run(name: str, seed: int, count: int | None, short: bool) -> Report:
    campaign = CAMPAIGNS[name]
    amount = count if count is not None else campaign.short if short else campaign.long
    with tempfile.TemporaryDirectory(prefix="fetchsgd-chaos-") as folder:
        began = time.monotonic()
        found = campaign.work(seed, amount, Path(folder))
        return found | {"seconds": round(time.monotonic() - began, 1)}


def chosen(name: str, short: bool) -> list[str]:
    if name != "all":
        return [name]
    names = list(IN_SHORT if short else CAMPAIGNS)
    return [n for n in names if os.geteuid() == 0 or not CAMPAIGNS[n].needs_root]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("campaign", choices=["all", *CAMPAIGNS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="messages, deaths, troubles, replies a round")
    parser.add_argument("--short", action="store_true", help="seconds instead of an hour")
    parser.add_argument("--out", type=Path, help=".jsonl to add the lines to")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    # Forks first: a process that has computed something has threads and locks that they would miss.
    names = sorted(
        chosen(given.campaign, given.short), key=lambda n: not n.startswith(("kill", "disk"))
    )
    for name in names:
        line = json.dumps(run(name, given.seed, given.count, given.short))
        print(line, flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("a") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
