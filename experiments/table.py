"""The table of a results file, in Markdown: one line for runs that differ only in their seed.

    python experiments/table.py results/cifar10-low-bit.jsonl

Pages hold such tables between `<!-- table FILE -->` and `<!-- end -->`; `--write PAGE` renews them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fetchsgd.formatting import UNKNOWN, format_metric, format_ratio, plural
from fetchsgd.report.groups import Group, Task, differing_settings, group_by_task
from fetchsgd.report.runs import DIVERGED, Run, find_runs
from fetchsgd.report.settings import setting_name, setting_value
from fetchsgd.report.traffic import KINDS, PAPER, WIRE

HEAD = """\
| method | settings | seeds | {metric} |{privacy} up | down | overall | {paper} |
|---|---|---|---|{rule}---|---|---|---|"""

ALWAYS = ("upload.bits", "upload.tau", "upload.density", "download.grid", "download.step")


def table(results: Path) -> str:
    """All groups of runs in the file, by task, method and growing overall compression.

    Below it stands which code made the rows, as they say themselves.
    """
    lines = []
    runs = find_runs([results])
    for task in group_by_task(runs):
        is_private = any(run.epsilon is not None for run in task.runs)
        lines.append(
            HEAD.format(
                metric=task.metric,
                paper="as the paper counts: overall",
                privacy=" epsilon |" if is_private else "",
                rule="---|" if is_private else "",
            )
        )
        for group in task.groups:
            alike = [run for run in task.runs if run.method == group.series.method]
            lines.append(_line(group, task, differing_settings(alike), is_private))
    return "\n".join([*lines, "", _made_by(runs, results)])


def _made_by(runs: list[Run], results: Path) -> str:
    """Commits, with the number of rows that each has made; "+" is one with changes on top."""
    commits = Counter(run.commit or "unknown" for run in runs)
    if len(commits) == 1:
        told = f"commit `{next(iter(commits))}`"
    else:
        told = "commits " + ", ".join(f"`{name}` ({rows})" for name, rows in commits.most_common())
    where = ", ".join(sorted({run.hardware or "unknown" for run in runs}))
    torch = ", ".join(sorted({run.versions.get("torch", "unknown") for run in runs}))
    again = f"`fetchsgd reproduce {results.stem}`"
    return (
        f"{plural(len(runs), 'row')}, made by {told} on {where.replace(' 1 threads', ' 1 thread')} "
        f"with torch {torch}; {again} runs them again and compares."
    )


def _line(group: Group, task: Task, differing: list[str], is_private: bool) -> str:
    first = group.runs[0]
    shown = [
        key
        for key in dict.fromkeys([*differing, *ALWAYS])
        if _is_worth_showing(first.settings, key)
    ]
    settings = ", ".join(f"{setting_name(k)} {setting_value(first.settings[k])}" for k in shown)
    points = [group.point(kind, WIRE) for kind in KINDS]
    paper = group.point("overall", PAPER)
    diverged = sum(run.status == DIVERGED for run in group.runs)
    seeds = f"{len(group.runs)}" + (f", {diverged} diverged" if diverged else "")
    value = UNKNOWN
    if points[0] is not None:
        value = format_metric(points[0].value, task.metric)
        if points[0].low < points[0].high:
            low, high = (format_metric(v, task.metric) for v in (points[0].low, points[0].high))
            value += f" ({low.removesuffix(' %')} to {high.removesuffix(' %')})"
    ratios = [format_ratio(point.compression if point else None) for point in (*points, paper)]
    spent = [UNKNOWN if first.epsilon is None else f"{first.epsilon:.3g}"] * is_private
    return "| " + " | ".join([first.method, settings, seeds, value, *spent, *ratios]) + " |"


def _is_worth_showing(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a setting is worth a word: plain floats are not, and the step implies its grid."""
    plain = {("upload.bits", 32), ("download.grid", "float32"), ("download.grid", "steps")}
    return key in settings and (key, settings[key]) not in plain


def renewed(page: str, root: Path) -> str:
    """The page with its tables as the results files have them."""
    return re.sub(
        r"(<!-- table (\S+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{table(root / found[2])}\n{found[3]}",
        page,
        flags=re.S,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--write", type=Path, help="a page whose tables are to be renewed")
    options = parser.parse_args()
    for results in options.results:
        print(table(results))
    if options.write:
        root = Path(__file__).parents[1]
        options.write.write_text(renewed(options.write.read_text(), root))


if __name__ == "__main__":
    main()
