"""The tables of docs/ddp.md, from benchmarks/results/.

    python benchmarks/ddp/page.py --write docs/ddp.md

Renews what stands between `<!-- ddp NAME -->` and `<!-- end -->`, NAME being a function below.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reading import in_one_process, steps_to

RESULTS = Path(__file__).parents[1] / "results"
LOSSES = (2.4, 2.3, 2.2, 2.1, 2.0)
# Of ResNet9: losses by step, and how long steps take over links. The second may come later.
IMAGES, IMAGE_LINKS = RESULTS / "ddp-resnet9-h200.jsonl", RESULTS / "ddp-resnet9-links-h200.json"
IMAGE_LOSSES = (1.4, 1.2, 1.0, 0.8)
MISSING = "Not measured yet."
Row = dict[str, Any]


def lines_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def links() -> Row:
    found: Row = json.loads((RESULTS / "ddp-links-h200.json").read_text())
    return found


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Those that send most first."""
    methods = dict.fromkeys(row["method"] for row in sorted(rows, key=lambda row: -row["sent"]))
    return {method: [row for row in rows if row["method"] == method] for method in methods}


def fewest_steps(rows: Sequence[Row], loss: float) -> int | None:
    """Over the rates of learning that were tried."""
    found = [steps_to(row["losses"], loss) for row in rows]
    return min((steps for steps in found if steps), default=None)


def curves() -> str:
    """Steps and bytes to each loss, by the better rate of learning for it."""
    head = " | ".join(f"to {loss}" for loss in LOSSES)
    table = [f"| | kB a step | loss at the end | {head} |", "|---" * (3 + len(LOSSES)) + "|"]
    for method, rows in by_method(lines_of("ddp-curves-h200.jsonl")).items():
        sent, last = rows[0]["sent"], min(row["loss"] for row in rows)
        cells = [f"`{method}`", f"{sent / 1e3:.0f}", f"{last:.3f}"]
        for loss in LOSSES:
            steps = fewest_steps(rows, loss)
            cells.append(f"{steps}, {steps * sent / 1e6:.0f} MB" if steps else "")
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def resnet9() -> str:
    """Accuracy at the end; and steps, bytes and, where steps were timed, seconds to each loss."""
    if not IMAGES.exists():
        return MISSING
    timed = json.loads(IMAGE_LINKS.read_text())["steps"] if IMAGE_LINKS.exists() else []
    seconds = {row["method"]: row["seconds"] for row in timed if row["rate"] == "100mbit"}
    head = " | ".join(f"to {loss}" for loss in IMAGE_LOSSES)
    table = [f"| | kB a step | accuracy | rate | {head} |", "|---" * (4 + len(IMAGE_LOSSES)) + "|"]
    for method, rows in by_method(lines_of(IMAGES.name)).items():
        sent, ended = rows[0]["sent"], [row for row in rows if row["loss"] is not None]
        best = max(ended, key=lambda row: row["test"], default=None)
        accuracy = f"{100 * best['test']:.1f} % | {best['lr']:g}" if best else "diverged | "
        cells = [f"`{method}`", f"{sent / 1e3:.0f}", accuracy]
        for loss in IMAGE_LOSSES:
            found = fewest_steps(ended, loss)
            cell = f"{found}, {found * sent / 1e6:.0f} MB" if found else ""
            if found and method in seconds:
                cell += f", {found * seconds[method]:.0f} s"
            cells.append(cell)
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def steps() -> str:
    """Milliseconds of a step over links of two speeds."""
    table = ["| | MB sent a step | ms a step at 100 Mbit/s | at 1 Gbit/s |", "|---|---|---|---|"]
    for method, rows in by_method(links()["steps"]).items():
        times = {row["rate"]: 1e3 * row["seconds"] for row in rows}
        cells = f"{rows[0]['sent'] / 1e6:.3f} | {times['100mbit']:.0f} | {times['1gbit']:.0f}"
        table.append(f"| `{method}` | {cells} |")
    return "\n".join(table)


def seconds_to(run: Row, loss: float) -> float | None:
    found = steps_to(run["losses"], loss)
    return float(run["ends"][found - 1]) if found else None


def runs() -> str:
    """Seconds of whole runs until each loss was there."""
    head = " | ".join(f"to {loss}" for loss in LOSSES[:-1])
    table = [f"| | {head} | steps in all |", "|---" * (len(LOSSES) + 1) + "|"]
    for run in links()["runs"]:
        times = [seconds_to(run, loss) for loss in LOSSES[:-1]]
        cells = [f"{time:.1f} s" if time else "" for time in times]
        table.append(f"| `{run['method']}` | {' | '.join(cells)} | {len(run['losses'])} |")
    return "\n".join(table)


def own_time() -> str:
    """How much longer a step is with a hook."""
    table = ["| weights | | ms a step | more than plain DDP |", "|---|---|---|---|"]
    for row in lines_of("ddp-own-time-h200.jsonl"):
        more = f"{100 * (row['ratio'] - 1):.0f} %".replace("-0 %", "0 %")
        size = f"{row['weights'] / 1e6:.0f} million"
        table.append(f"| {size} | `{row['method']}` | {1e3 * row['seconds']:.1f} | {more} |")
    return "\n".join(table)


def own_time_words() -> str:
    """What the sketch takes with DDP's own buckets."""
    rows = lines_of("ddp-own-time-h200.jsonl")
    shares = [
        f"{100 * (row['ratio'] - 1):.1f} % of a step of {row['weights'] / 1e6:.0f} million weights"
        for row in rows
        if row["method"] == "sketch:64:cells=int4"
    ]
    return f"**With DDP's own buckets the sketch takes {', and '.join(shares)}.**"


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (curves, resnet9, steps, runs, own_time, own_time_words)
}


def renewed(page: str) -> str:
    return re.sub(
        r"(<!-- ddp (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        page,
        flags=re.S,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, required=True)
    page = parser.parse_args().write
    page.write_text(renewed(page.read_text()))


if __name__ == "__main__":
    main()
