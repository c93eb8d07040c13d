"""Campaign "network": a real federation whose clients are at the far ends of bad links.

Storms: every few seconds each link begins to lose packets, to reorder or reset them, stands still
or is cut, and once half of all links are cut for long, and heal. A round waits for everybody, so
the final weights are those of a run without a network. Silence: half of the clients are cut off for
several rounds, which go on without them; they come back. Then accuracy is within noise.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from chaos.kills import every_reply_counted, same_as
from chaos.wires import HOST, Weather, Wires
from flower.federations import federation, lines, train
from flower.real import APP, ENVIRONMENT

from fetchsgd.flower.processes import Federation

CLIENTS = 4
TEST_IMAGES = 599
ROUND = 240.0  # seconds at most, on a machine that others use
PARTITION = 20.0  # seconds
DIGITS = (
    "task.split=iid task.examples_per_client=100 method.k=10000 method.cols=20000 "
    "method.momentum=0 local.epochs=5 local.batch_size=10 schedule.kind=constant "
    "schedule.peak=0.05 download.grid=steps federation.attempts=50"
)


def settings(out: Path, rounds: int, per_round: int) -> dict[str, Any]:
    """Clients that learn much in a few rounds; all are asked, and `per_round` are enough."""
    return {
        "task.name": "digits", "federation.out": str(out), "federation.clients": CLIENTS,
        "train.clients_per_round": per_round, "federation.min_replies": per_round,
        "train.epochs": rounds * per_round / CLIENTS, "federation.oversample": CLIENTS / per_round,
        "federation.wait": 300.0, "federation.deadline": 45.0, "settings": DIGITS,
    }  # fmt: skip


def calm(given: dict[str, Any]) -> dict[str, Any]:
    """The same without processes and links."""
    grid = federation(Path(given["federation.out"]), clients=range(CLIENTS))
    grid.run_config.update(given)
    return train(grid)


def drawn(random: Random) -> tuple[Weather, float]:
    """A weather, and for how many seconds."""
    kinds = (
        (Weather(), 5.0),
        (Weather(drop=random.uniform(0.02, 0.2)), 8.0),
        (Weather(late=random.uniform(0.1, 0.5)), 8.0),
        (Weather(reset=random.uniform(0.005, 0.05)), 8.0),
        (Weather(drop=0.05, late=0.2, reset=0.01), 8.0),
        (Weather(stalled=True), 4.0),
        (Weather(cut=True), 4.0),
    )
    weather, most = random.choice(kinds)
    return weather, random.uniform(1.0, most)


class Storm(threading.Thread):
    """Changes the weather of each link until it is told to end; then it is fine."""

    def __init__(self, wires: Wires, random: Random) -> None:
        super().__init__(daemon=True)
        self.wires, self.random, self.done = wires, random, threading.Event()
        self.changes: Counter[str] = Counter()
        self.until = [0.0] * wires.count

    def run(self) -> None:
        while not self.done.wait(0.1):
            now = time.monotonic()
            for link in [n for n, until in enumerate(self.until) if until <= now]:
                self.wires.weather[link], seconds = drawn(self.random)
                self.until[link] = now + seconds
                self.changes["weather"] += 1
        self.wires.weather[:] = [Weather()] * self.wires.count

    def partition(self) -> None:
        """Half of all links are cut for long, and then heal."""
        chosen = self.random.sample(range(self.wires.count), self.wires.count // 2)
        for link in chosen:
            self.until[link] = time.monotonic() + PARTITION
            self.wires.weather[link] = Weather(cut=True)
        self.changes["partition"] += 1


def wait(flower: Federation, out: Path, is_there: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_there():
        process = flower.processes["run"]
        is_over = process.poll() is not None and not (out / "result.json").exists()
        assert not is_over, f"the run has ended: {flower.log('run')[-4000:]}"
        assert time.monotonic() < end, f"no end after {seconds:.0f} s: {flower.log('run')[-4000:]}"
        time.sleep(0.1)


def rounds_of(out: Path) -> int:
    return len(lines(out)) if (out / "metrics.jsonl").exists() else 0


def federate(
    wires: Wires,
    given: dict[str, Any],
    folder: Path,
    during: Callable[[Federation, Path], None],
) -> dict[str, Any]:
    """SuperNodes at the far ends, and a run that something happens to."""
    out = Path(given["federation.out"])
    with Federation(folder / "flower", ENVIRONMENT, host=HOST) as flower:
        for link in range(CLIENTS):
            flower.start_node(f"node{link}", f"partition-id={link}", inside=wires.inside(link))
        flower.start_run(APP, given)
        during(flower, out)
        wait(flower, out, lambda: (out / "result.json").exists(), 10 * ROUND)
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert found["status"] == "finished", found["status"]
    return found


def storms(seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """A partition and bad weather in every round."""
    calm(settings(folder / "whole", rounds, CLIENTS))
    given = settings(folder / "run", rounds, CLIENTS)
    with Wires(CLIENTS, seed) as wires:
        storm = Storm(wires, Random(f"storm {seed}"))

        def during(flower: Federation, out: Path) -> None:
            storm.start()
            wait(flower, out, lambda: rounds_of(out) >= rounds // 3, rounds * ROUND)
            storm.partition()
            wait(flower, out, lambda: rounds_of(out) >= rounds, rounds * ROUND)

        try:
            found = federate(wires, given, folder, during)
        finally:
            storm.done.set()
    same_as(folder / "whole", folder / "run", traffic=False)
    every_reply_counted(folder / "run")
    counts = found["federation"]["counts"]
    return {
        "rounds": rounds, "identical": True, "changes": dict(storm.changes),
        "packets": dict(wires.counts),
        **{name: counts[name] for name in ("asked", "replies", "late", "failed", "joined")},
    }  # fmt: skip


def silence(seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Half of the clients are cut off for half of the rounds."""
    expected = calm(settings(folder / "whole", rounds, CLIENTS // 2))["value"]
    given = settings(folder / "run", rounds, CLIENTS // 2)
    with Wires(CLIENTS, seed) as wires:
        silent = Random(f"silence {seed}").sample(range(CLIENTS), CLIENTS // 2)

        def during(flower: Federation, out: Path) -> None:
            wait(flower, out, lambda: rounds_of(out) >= 1, 2 * ROUND)
            for link in silent:
                wires.weather[link] = Weather(cut=True)
            wait(flower, out, lambda: rounds_of(out) >= 1 + rounds // 2, rounds * ROUND)
            wires.weather[:] = [Weather()] * CLIENTS

        found = federate(wires, given, folder, during)
    # Two samples of so many images, of which one is worse by three standard errors once in 700.
    noise = math.sqrt(2 * expected * (1 - expected) / TEST_IMAGES)
    assert found["value"] >= expected - 3 * noise, (found["value"], expected)
    counts = found["federation"]["counts"]
    assert counts["silent"] >= 1, counts
    return {
        "rounds": rounds, "accuracy": found["value"], "accuracy_calm": expected,
        "standard_error": round(noise, 4), "cut off": wires.counts["cut off"],
        **{name: counts[name] for name in ("asked", "replies", "silent", "late", "joined")},
    }  # fmt: skip


def campaign(seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Storms for so many rounds, and then, unless there are very few, as many with silence."""
    found: dict[str, Any] = {"campaign": "network", "seed": seed}
    found["storms"] = storms(seed, rounds, folder / "storms")
    if rounds >= 4:
        found["silence"] = silence(seed, rounds, folder / "silence")
    return found
