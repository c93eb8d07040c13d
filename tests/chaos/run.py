"""The campaigns, one by one or all: `make chaos`.

    python tests/chaos/run.py bytes --seed 7 --count 10000000
    python tests/chaos/run.py all --out build/chaos.jsonl          the long form, hours
    python tests/chaos/run.py all --short                          minutes

Each prints a line of JSON, and adds it to the file. What does not hold ends the command with the
place where it was seen; the same seed brings the same troubles again. Disks and networks need root.
Long ones come in portions, each with the next seed: a portion that the file holds already, of the
same commit, is not run again.
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
from chaos import disks, flower_kills, hostile_bytes, kills, load, network  # noqa: E402
from chaos.portions import is_there, tell  # noqa: E402

from fetchsgd.runs.environment import commit, hardware  # noqa: E402

Report = dict[str, Any]


@dataclass(frozen=True)
class Campaign:
    """`work` takes a seed, how many, and a folder; `long` and `short` are how many.

    portions: how many times, each with a seed of its own, the long form is run.
    """

    work: Callable[[int, int, Path], Report]
    long: int
    short: int
    needs_root: bool = False
    portions: int = 1


def _bytes(seed: int, count: int, folder: Path) -> Report:
    return hostile_bytes.campaign(seed, count, float("inf"), folder)


def _load(way: str) -> Callable[[int, int, Path], Report]:
    def work(seed: int, count: int, folder: Path) -> Report:
        return load.campaign(seed, count, 3, folder, way)

    return work


CAMPAIGNS = {
    "bytes": Campaign(_bytes, 1_000_000, 3000, portions=10),
    "kill-simulator": Campaign(kills.simulator, 100, 2),
    "kill-server": Campaign(kills.server, 100, 2),
    "kill-clients": Campaign(kills.clients, 100, 4),
    "kill-flower": Campaign(flower_kills.campaign, 24, 3, portions=10),
    "kill-secure": Campaign(flower_kills.secure_campaign, 24, 3, portions=4),
    "network": Campaign(network.campaign, 12, 2, needs_root=True),
    "damage": Campaign(disks.damage, 0, 40),
    "disk": Campaign(disks.disks, 100, 4, needs_root=True),
    **{f"load-{way.replace(' ', '-')}": Campaign(_load(way), 1000, 40) for way in load.WAYS},
}
IN_SHORT = (
    "bytes",
    "kill-simulator",
    "kill-server",
    "kill-clients",
    "kill-flower",
    "kill-secure",
    "network",
    "damage",
    "disk",
    "load-floats",
)


def run(name: str, seed: int, amount: int) -> Report:
    about = {"name": name, "amount": amount, "commit": commit()}
    with tempfile.TemporaryDirectory(prefix="fetchsgd-chaos-") as folder:
        began = time.monotonic()
        found = CAMPAIGNS[name].work(seed, amount, Path(folder))
        found |= {"seconds": round(time.monotonic() - began, 1)}
    return found | about | {"hardware": hardware(torch.device("cpu"))}


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
    parser.add_argument("--short", action="store_true", help="minutes instead of hours")
    parser.add_argument("--out", type=Path, help=".jsonl to add the lines to")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    # Forks first: a process that has computed something has threads and locks that they would miss.
    names = sorted(
        chosen(given.campaign, given.short), key=lambda n: not n.startswith(("kill", "disk"))
    )
    for name in names:
        campaign, portions = CAMPAIGNS[name], 1
        amount = given.count
        if amount is None:
            amount = campaign.short if given.short else campaign.long
            portions = 1 if given.short else campaign.portions
        for seed in range(given.seed, given.seed + portions):
            if not is_there(given.out, name, seed, amount):
                tell(json.dumps(run(name, seed, amount)), given.out)


if __name__ == "__main__":
    main()
