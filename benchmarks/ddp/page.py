"""The tables of docs/ddp.md, from benchmarks/results/.

    python benchmarks/ddp/page.py --write docs/ddp.md

Renews what stands between `<!-- ddp NAME -->` and `<!-- end -->`, NAME being a function below.
"""

from __future__ import annotations

import argparse
import json
import math
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
SPEEDS = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
MISSING = "Not measured yet."
Row = dict[str, Any]


def lines_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def links() -> Row:
    found: Row = json.loads((RESULTS / "ddp-links-h200.json").read_text())
    return found


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def brief(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


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


def image_seconds(rate: str) -> dict[str, float]:
    """How long a step of ResNet9 takes over links of that speed, where that was measured."""
    timed = json.loads(IMAGE_LINKS.read_text())["steps"] if IMAGE_LINKS.exists() else []
    return {in_one_process(r["method"]): r["seconds"] for r in timed if r["rate"] == rate}


def image_rows() -> dict[str, list[Row]]:
    """Of each method the runs that have not diverged."""
    return {
        method: [row for row in rows if row["loss"] is not None]
        for method, rows in by_method(lines_of(IMAGES.name)).items()
    }


def resnet9() -> str:
    """Accuracy at the end; and steps, bytes and, where steps were timed, seconds to each loss."""
    if not IMAGES.exists():
        return MISSING
    seconds = {rate: image_seconds(rate) for rate in SPEEDS}
    head = " | ".join(f"to {loss}" for loss in IMAGE_LOSSES)
    table = [
        f"| | kB a step | ms a step | accuracy | rate | {head} |",
        "|---" * (5 + len(IMAGE_LOSSES)) + "|",
    ]
    for method, rows in by_method(lines_of(IMAGES.name)).items():
        sent, ended = rows[0]["sent"], [row for row in rows if row["loss"] is not None]
        best = max(ended, key=lambda row: row["test"], default=None)
        accuracy = f"{100 * best['test']:.1f} % | {best['lr']:g}" if best else "diverged | "
        times = [each[method] for each in seconds.values() if method in each]
        taken = " and ".join(f"{1e3 * time:.0f}" for time in times)
        cells = [f"`{method}`", f"{sent / 1e3:.0f}", taken, accuracy]
        for loss in IMAGE_LOSSES:
            found = fewest_steps(ended, loss)
            cell = f"{found}, {found * sent / 1e6:.0f} MB" if found else ""
            if found and times:
                cell += ", " + " and ".join(brief(found * time) for time in times) + " s"
            cells.append(cell)
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def resnet9_rates() -> str:
    """Which rates of learning each method was tried at."""
    tried: dict[str, list[str]] = {}
    for method, rows in by_method(lines_of(IMAGES.name)).items():
        rates = listed([f"{rate:g}" for rate in sorted({row["lr"] for row in rows})])
        tried.setdefault(rates, []).append(f"`{method}`")
    usual = max(tried, key=lambda rates: len(tried[rates]))
    others = [f"{listed(names)} {rates}" for rates, names in tried.items() if rates != usual]
    return f"Rates that were tried: {'; '.join([usual, *others])}."


def least_seconds(kinds: Sequence[str], loss: float, rate: str = "100mbit") -> float:
    """Of the methods of some kinds, the fastest to a loss by steps times the length of a step."""
    seconds = image_seconds(rate)
    found = [
        steps * seconds[method]
        for method, rows in image_rows().items()
        if method.split(":")[0] in kinds and method in seconds
        if (steps := fewest_steps(rows, loss))
    ]
    return min(found, default=math.inf)


def resnet9_words() -> str:
    """How we compare with PowerSGD's best rank on images."""
    told = []
    for rate, speed in SPEEDS.items():
        kinds = {"power": ["power"], "sketch": ["sketch"], "lowrank": ["lowrank"], "topk": ["topk"]}
        each = {
            name: [least_seconds(kind, loss, rate) for loss in IMAGE_LOSSES]
            for name, kind in kinds.items()
        }
        texts = {
            name: listed([f"{time:.1f}" if time < math.inf else "never" for time in times])
            for name, times in each.items()
        }
        times = [
            theirs / min(one, other)
            for theirs, one, other in zip(
                each["power"], each["sketch"], each["lowrank"], strict=True
            )
        ]
        told.append(
            f"At {speed}, to {listed([str(loss) for loss in IMAGE_LOSSES])}: PowerSGD's best rank "
            f"{texts['power']} s, the best sketch {texts['sketch']} s, the best of "
            f"`low_rank_hook` {texts['lowrank']} s, local top-k {texts['topk']} s. The faster of "
            f"ours is {listed([f'{ratio:.1f}' for ratio in times])} times as fast as PowerSGD."
        )
    return "\n".join(told)


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


def all_runs() -> list[Row]:
    """Whole runs over links, of all files that there are."""
    files = [RESULTS / f"ddp-links-{part}h200.json" for part in ("", "100mbit-", "1gbit-")]
    return [run for file in files if file.exists() for run in json.loads(file.read_text())["runs"]]


def runs() -> str:
    """Seconds of whole runs until each loss was there."""
    head = " | ".join(f"to {loss}" for loss in LOSSES[:-1])
    table = [f"| links | | {head} | steps in all |", "|---" * (len(LOSSES) + 2) + "|"]
    for run in all_runs():
        times = [seconds_to(run, loss) for loss in LOSSES[:-1]]
        cells = " | ".join(f"{time:.1f} s" if time else "" for time in times)
        method = in_one_process(run["method"])
        table.append(f"| {SPEEDS[run['rate']]} | `{method}` | {cells} | {len(run['losses'])} |")
    return "\n".join(table)


def namespaces() -> str:
    """Steps of four ranks behind real links, on a machine of two cores."""
    table = [
        "| | MB sent a step | ms a step at 100 Mbit/s | at 1 Gbit/s | of a core, ms |",
        "|---" * 5 + "|",
    ]
    for method, rows in by_method(lines_of("ddp-steps-cpu.jsonl")).items():
        times = {row["rate"]: f"{1e3 * row['seconds']:.0f}" for row in rows}
        own = f"{1e3 * max(row['own'] for row in rows):.0f}"
        cells = [f"{rows[0]['sent'] / 1e6:.3f}", *(times[rate] for rate in SPEEDS), own]
        table.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(table)


def namespaces_words() -> str:
    """Steps of the curves times these steps."""
    rows = lines_of("ddp-steps-cpu.jsonl")
    seconds = {row["method"]: row["seconds"] for row in rows if row["rate"] == "100mbit"}
    curves = by_method(lines_of("ddp-curves-h200.jsonl"))
    ratios = []
    for loss in LOSSES:
        least = {
            kind: min(
                steps * seconds[method]
                for method, runs in curves.items()
                if method.split(":")[0] == kind and method in seconds
                if (steps := fewest_steps(runs, loss))
            )
            for kind in ("power", "sketch")
        }
        ratios.append(f"{least['power'] / least['sketch']:.1f}")
    return (
        f"By steps times the length of a step at 100 Mbit/s, the best sketch is {listed(ratios)} "
        f"times as fast as PowerSGD's best rank to {listed([str(loss) for loss in LOSSES])}."
    )


def more(row: Row) -> str:
    """Than a step of plain DDP."""
    return f"{100 * (row['ratio'] - 1):.0f} %".replace("-0 %", "0 %")


def own_time() -> str:
    """How much longer a step is with a hook."""
    rows = lines_of("ddp-own-time-h200.jsonl")
    table = ["| weights | | ms a step | more than plain DDP |", "|---|---|---|---|"]
    for row in rows:
        size = f"{row['weights'] / 1e6:.0f} million"
        mark = "" if row["about"]["commit"] == rows[0]["about"]["commit"] else " †"
        cells = [size, f"`{row['method']}`{mark}", f"{1e3 * row['seconds']:.1f}", more(row)]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def _share(ratio: float, weights: int) -> str:
    """What a hook takes of a step; less than nothing is what measurements differ by."""
    part = f"{100 * (ratio - 1):.1f} %"
    told = part if ratio > 1 else f"nothing that could be measured ({part})"
    return f"{told} of a step of {weights / 1e6:.0f} million weights"


def own_time_words() -> str:
    """What the sketch takes with DDP's own buckets and with others, and what others take."""
    rows = lines_of("ddp-own-time-h200.jsonl")
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["method"], {})[row["weights"]] = row
    sketch = "sketch:64:cells=int4"
    shares = [_share(row["ratio"], weights) for weights, row in found[sketch].items()]
    met = [f"{w / 1e6:.0f} million" for w, row in found[sketch].items() if row["ratio"] <= 1.05]
    said = f"The target was 5 %: met with {listed(met)}" if met else "The target was 5 %"
    missed = [f"{w / 1e6:.0f} million" for w, row in found[sketch].items() if row["ratio"] > 1.05]
    said += f", missed with {listed(missed)}." if missed else "."
    others = {
        f"{sketch}:bucket_mb=1000": "with a single bucket",
        f"{sketch}:group_mb=1000": "with all buckets in one group",
        f"{sketch}:group_mb=0": "with a table for each bucket",
        "nothing": "a hook that does nothing",
        "bf16": "bfloat16",
        "power:4": "PowerSGD of rank 4",
        "plain:again": "plain DDP once more",
    }
    told = [
        f"{name} {listed([more(row) for row in found[method].values()])}"
        for method, name in others.items()
        if method in found
    ]
    text = f"**With DDP's own buckets the sketch takes {', and '.join(shares)}.** {said}\n"
    text += f"The others: {'; '.join(told)}."
    if len({row["about"]["commit"] for row in rows}) > 1:
        text += "\n† From another run with older code, in terms of plain DDP in that run."
    return text


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        curves, resnet9, resnet9_rates, resnet9_words, steps, runs, namespaces, namespaces_words,
        own_time, own_time_words,
    )
}  # fmt: skip


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
