"""A long run of a federation on this machine: does the memory of any process grow?

    make soak-federation          (20 SuperNodes, 100 rounds: some 20 minutes on two cores)

A SuperLink, SuperNodes and their helpers run as they would on many machines; a few clients take
part in each round, one more is asked than is waited for. Every other node keeps its state in a
folder. The memory of each process is read from /proc (anonymous pages, in memory or swapped out;
pages of files are not counted, since other processes share them).

Memory is flat if over the last half of the rounds it rises by less than LIMITS, by the Theil-Sen
slope (the median over all pairs of samples, which a few large replies do not move). The command
fails if the memory of some process is not. The first half is for warming up: a node is asked once
in five rounds, so it takes some fifty until it has done everything a few times. The limits are
below what a process would lose if it failed to free one payload per message.

    python benchmarks/soak.py --judge benchmarks/results/soak.json    (judges recorded curves)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

from measure import environment

from fetchsgd.flower.processes import MARK, Federation, words
from fetchsgd.server.sampling import Sampler

APP = Path(__file__).parents[1] / "examples/flower_app"
PER_ROUND, OVERSAMPLE = 3, 1.3
EVERY = 5.0  # seconds between samples
BEGIN = 0.5  # of the rounds are for warming up
LIMITS = {"server": 5.0, "superlink": 5.0, "node": 2.0, "helper": 2.0}  # MB in 100 rounds
ENVIRONMENT = {
    # Twenty helpers that look for work ten times a second would be busy with nothing else.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0",
    # Flower serves each request in one of many threads, and glibc keeps a heap for most of them.
    "MALLOC_ARENA_MAX": "1",
}
PROGRAMS = {
    "flower-superlink": "superlink",  # Flower's, on the server
    "flwr-serverapp": "server",  # ours
    "flower-supernode": "node",
    "flower-superexec": "helper",  # Flower's: starts processes, one beside each of the others
    "flwr-clientapp": "client",  # ours, for the time of a message
}
OWN = ("Anonymous", "SwapPss")  # fields of smaps_rollup
Samples = dict[str, dict[int, float]]  # process -> round -> MB


def processes(folder: Path) -> dict[str, int]:
    """All of a federation's, by the name of what was started and the kind of program."""
    found = {}
    mark = f"{MARK}={folder}:".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parts = (path / "environ").read_bytes().split(b"\0")
            name = next((p[len(mark) :].decode() for p in parts if p.startswith(mark)), None)
            line = words(int(path.name)) if name else ""
            kind = next((kind for program, kind in PROGRAMS.items() if program in line), None)
            if name and kind:
                found[f"{kind} {name}"] = int(path.name)
    return found


def memory(pid: int) -> float | None:
    """MB of its own, or None where the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sum(kilobytes.get(part, 0) for part in OWN) / 1024


def slope(points: list[tuple[float, float]]) -> float:
    """Theil-Sen: the median over all pairs."""
    return statistics.median((y - v) / (x - u) for (u, v), (x, y) in combinations(points, 2))


def growth(series: dict[int, float], rounds: int) -> float:
    """MB in 100 rounds, after warming up."""
    points = [(float(r), mb) for r, mb in series.items() if r >= BEGIN * rounds]
    return 100 * slope(points) if len(points) > 2 else 0.0


def rounds_done(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def watch(federation: Federation, out: Path, limit: float) -> Samples:
    """Until the run has ended; of several samples in one round the median is kept."""
    taken: dict[str, dict[int, list[float]]] = {}
    shown, stop = -1, time.monotonic() + limit
    while federation.processes["run"].poll() is None and time.monotonic() < stop:
        done = rounds_done(out)
        for name, pid in processes(federation.folder).items():
            if (found := memory(pid)) is not None:
                taken.setdefault(name, {}).setdefault(done, []).append(found)
        if done > shown and done % 10 == 0:
            print(f"round {done}, {time.strftime('%H:%M:%S')}", flush=True)
            shown = done
        time.sleep(EVERY)
    return {
        name: {done: statistics.median(found) for done, found in by_round.items()}
        for name, by_round in taken.items()
    }


def judge(samples: Samples, rounds: int) -> list[dict[str, Any]]:
    """A row for each process that lives for the whole run."""
    rows = []
    for name, series in sorted(samples.items()):
        kind = name.split()[0]
        if kind in LIMITS:
            rise = growth(series, rounds)
            row = {"process": name, "kind": kind, "own_mb": series[max(series)]}
            rows.append(row | {"own_growth": rise, "flat": rise <= LIMITS[kind]})
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print("\nMB in 100 rounds, by the Theil-Sen slope")
    print(f"{'':<12}{'processes':>10}{'own now':>10}{'median':>10}{'largest':>10}{'limit':>8}")
    for kind, limit in LIMITS.items():
        of = [row for row in rows if row["kind"] == kind]
        rises = [row["own_growth"] for row in of]
        now = statistics.median(row["own_mb"] for row in of)
        verdict = "flat" if all(row["flat"] for row in of) else "GROWS"
        middle = statistics.median(rises)
        print(
            f"{kind:<12}{len(of):>10}{now:>10.1f}{middle:>10.2f}{max(rises):>10.2f}{limit:>8g}"
            f" {verdict}"
        )


def draw(samples: Samples, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    looks: dict[str, tuple[str, float, str]] = {
        "server": ("#b2182b", 1.8, "ServerApp"),
        "superlink": ("#2166ac", 1.8, "SuperLink"),
        "node": ("#4d9221", 0.8, "SuperNodes"),
        "helper": ("#999999", 0.8, "SuperExec, beside each"),
    }
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    labelled = set()
    for name, series in sorted(samples.items()):
        kind = name.split()[0]
        if kind in looks:
            colour, width, label = looks[kind]
            shown = None if kind in labelled else label
            axes.plot(
                list(series), list(series.values()), color=colour, linewidth=width, label=shown
            )
            labelled.add(kind)
    axes.set(xlabel="rounds", ylabel="memory of its own, MB", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def run(folder: Path, nodes: int, rounds: int, limit: float) -> tuple[Samples, dict[str, Any]]:
    out = folder / "run"
    per_epoch = Sampler(nodes, PER_ROUND, "epoch", 0).rounds_per_epoch
    settings = {
        "federation.out": str(out), "federation.clients": nodes, "federation.wait": 600.0,
        "federation.oversample": OVERSAMPLE, "train.clients_per_round": PER_ROUND,
        "train.epochs": rounds / per_epoch,
        "settings": "task.split=iid task.examples_per_client=50",
    }  # fmt: skip
    with Federation(folder / "flower", ENVIRONMENT) as federation:
        for node in range(nodes):
            state = f' state="{folder / "state"}"' if node % 2 else ""
            federation.start_node(f"{node}", f"partition-id={node}{state}")
        federation.start_run(APP, settings)
        samples = watch(federation, out, limit)
        if not (out / "result.json").exists():
            sys.exit(f"the run has left no result:\n{federation.log('run')[-4000:]}")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return samples, result


def rejudge(path: Path) -> None:
    """Judge recorded curves by the current LIMITS, and write the verdict beside them."""
    content = json.loads(path.read_text())
    samples: Samples = {name: dict(points) for name, points in content["own_mb"].items()}
    content["limits_mb_in_100_rounds"] = LIMITS
    content["processes"] = judge(samples, content["rounds"])
    print_table(content["processes"])
    path.write_text(json.dumps(content) + "\n")
    exit_if_growing(content["processes"])


def exit_if_growing(rows: list[dict[str, Any]]) -> None:
    if not all(row["flat"] for row in rows):
        sys.exit("memory grows: see above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help=".json; beside it comes a .png")
    parser.add_argument("--judge", type=Path, help="what --out wrote earlier; nothing is run")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--limit", type=float, default=5400.0, help="seconds for all of it")
    given = parser.parse_args()
    if given.judge is not None:
        rejudge(given.judge)
        return
    if given.out is None:
        parser.error("--out is needed")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fetchsgd-soak-") as folder:
        samples, result = run(Path(folder), given.nodes, given.rounds, given.limit)
    rows = judge(samples, given.rounds)
    print_table(rows)
    curves = {
        name: [[done, round(mb, 2)] for done, mb in series.items()]
        for name, series in samples.items()
        if name.split()[0] in LIMITS
    }
    content = {
        "about": environment("cpu") | {"cores": os.cpu_count(), "nodes": given.nodes},
        "seconds": round(time.monotonic() - start),
        "rounds": result["rounds"],
        result["metric"]: result["value"],
        "counts": result["federation"]["counts"],
        "limits_mb_in_100_rounds": LIMITS,
        "environment": ENVIRONMENT,
        "processes": rows,
        "own_mb": curves,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(content) + "\n")
    draw(samples, given.out.with_suffix(".png"))
    if result["rounds"] != given.rounds:
        sys.exit("rounds are missing: see above")
    exit_if_growing(rows)


if __name__ == "__main__":
    main()
