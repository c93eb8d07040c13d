"""The README's table of results: for each method the best setting of its kind on CIFAR10, among
those with the most seeds.

    python experiments/headline.py --write README.md

Renews what stands between `<!-- headline -->` and `<!-- end -->`. All bytes are on the wire; values
are means over the seeds of a setting. "Best of" is how many settings of the kind have a result;
where some have more seeds than others, only those can be the best.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

from fetchsgd.formatting import format_metric, format_ratio
from fetchsgd.report.groups import Group, group_by_task
from fetchsgd.report.runs import find_runs
from fetchsgd.report.traffic import KINDS, WIRE

ROOT = Path(__file__).parents[1]
HEAD = """\
| CIFAR10, 10,000 clients of one class each | accuracy | up | down | overall | best of | seeds |
|---|---|---|---|---|---|---|"""


class Row(NamedTuple):
    """The best group of a file, a method and these settings."""

    label: str
    file: str
    method: str
    settings: dict[str, Any]


LARGE_ROUNDS, SMALL_ROUNDS = ({"train.clients_per_round": n} for n in (100, 25))
ROWS = (
    Row("uncompressed SGD", "cifar10-paper", "uncompressed", {}),
    Row("uncompressed SGD, 25 clients a round", "cifar10-cohorts", "uncompressed",
        {"upload.bits": 32}),
    Row("FedAvg", "cifar10-paper", "fedavg", {}),
    Row("local top-k with momentum, k = 650,000", "cifar10-paper", "local_topk",
        {"method.k": 650_000, "method.momentum": 0.9}),
    Row("FetchSGD as published, 10x up", "cifar10-paper", "fetchsgd-paper",
        {"method.cols": 650_000}),
    Row("FetchSGD as published, 20x up", "cifar10-paper", "fetchsgd-paper",
        {"method.cols": 325_000}),
    Row("**ours, sums only**: fresh hashes, 10x up", "cifar10-frontier", "fetchsgd",
        {"method.cols": 650_000}),
    Row("**ours, sums only**: fresh hashes, 20x up", "cifar10-frontier", "fetchsgd",
        {"method.cols": 325_000}),
    Row("**ours, sums only**: the same, 25 clients a round", "cifar10-cohorts", "fetchsgd",
        {"method.cols": 325_000, **SMALL_ROUNDS}),
    *(Row(f"**ours, secure sums** modulo 2^8, {up}x up{more}", "cifar10-sums", "fetchsgd",
          {"method.cols": cols, "method.k": 0, "upload.sum_bits": 8, **rounds})
      for up, cols in ((40, 650_000), (75, 340_000))
      for more, rounds in (("", LARGE_ROUNDS), (", 25 clients a round", SMALL_ROUNDS))),
    Row("**ours, messages seen**: one step for all", "cifar10-frontier", "uncompressed", {}),
    Row("**ours, messages seen**: the same, 25 clients a round", "cifar10-cohorts", "uncompressed",
        {"upload.density": 0.018}),
    Row("**ours, messages seen**: larger steps for larger tensors",
        "cifar10-steps-resnet9", "uncompressed", {"download.step": 1.0, **LARGE_ROUNDS}),
    Row("**ours, messages seen**: still larger steps, 50 clients a round",
        "cifar10-steps-resnet9", "uncompressed", {"train.clients_per_round": 50}),
    Row("**ours, messages seen**: k = 10,000", "cifar10-frontier", "true_topk",
        {"method.k": 10_000}),
)  # fmt: skip


def candidates(row: Row) -> list[Group]:
    [task] = group_by_task(find_runs([ROOT / f"results/{row.file}.jsonl"]))
    return [
        group
        for group in task.groups
        if group.runs[0].method == row.method
        and all(group.runs[0].settings.get(key) == value for key, value in row.settings.items())
        and group.point("overall", WIRE) is not None
    ]


def table() -> str:
    lines = [HEAD]
    for row in ROWS:
        found = candidates(row)
        group = max(found, key=lambda g: (len(g.runs), g.point("overall", WIRE).value))
        points = [group.point(kind, WIRE) for kind in KINDS]
        value = format_metric(points[0].value, group.runs[0].metric)
        ratios = [format_ratio(point.compression) for point in points]
        counts = [str(len(found)), str(len(group.runs))]
        lines.append("| " + " | ".join([row.label, value, *ratios, *counts]) + " |")
    return "\n".join(lines)


def renewed(page: str) -> str:
    return re.sub(
        r"(<!-- headline -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{table()}\n{found[2]}",
        page,
        flags=re.S,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="a page whose table is to be renewed")
    page = parser.parse_args().write
    print(table())
    if page:
        page.write_text(renewed(page.read_text()))


if __name__ == "__main__":
    main()
