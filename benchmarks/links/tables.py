"""The tables of the benchmark of slow links, on a terminal and in Markdown.

Pages hold them between `<!-- links ... -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from methods import CLIENTS, DOWN, UP
from rich.console import Console
from rich.table import Table

Found = Mapping[str, Any]
HEADS = {
    "times": (
        "method", "rounds", "accuracy", "seconds", "of these by bytes alone", "MB up", "MB down",
        "load of the machine",
    ),
    "bytes": (
        "method", "way", "a message", "MB on the link", "in TCP", "of payloads", "in the ledger",
        "link / ledger", "TCP / ledger",
    ),
}  # fmt: skip


def alone(row: Mapping[str, Any]) -> float:
    """Seconds that the links need for what has passed, all of them working at the same time."""
    return 8 * (row["up"]["frames"] / UP + row["down"]["frames"] / DOWN) / CLIENTS


def times(found: Found) -> list[list[str]]:
    """One line per method."""
    return [
        [
            row["method"],
            str(row["round"]),
            f"{row['accuracy']:.1%}".replace("%", " %"),
            f"{row['seconds']:.0f}",
            f"{alone(row):.0f}",
            *(f"{row[way]['frames'] / 1e6:.2f}" for way in ("up", "down")),
            f"{row['load']:.0f}",
        ]
        for row in found["rows"]
    ]


def bytes(found: Found) -> list[list[str]]:
    """One line per method and direction."""
    lines = []
    for row in found["rows"]:
        for way in ("up", "down"):
            part = row[way]
            kinds = ("frames", "contents", "payloads", "ledger")
            lines.append(
                [
                    row["method"] if way == "up" else "",
                    way,
                    f"{part['ledger'] / row['round'] / CLIENTS / 1e3:.1f} kB",
                    *(f"{part[kind] / 1e6:.3f}" for kind in kinds),
                    *(f"{part[kind] / part['ledger']:.3f}" for kind in kinds[:2]),
                ]
            )
    return lines


MAKE = {"times": times, "bytes": bytes}


def show(found: Found) -> None:
    console = Console()
    console.width = max(console.width, 120)
    for name, head in HEADS.items():
        table = Table(*head)
        for line in MAKE[name](found):
            table.add_row(*line)
        console.print(table)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def renewed(page: str, found: Found) -> str:
    """The page with its tables as measured."""
    return re.sub(
        r"(<!-- links (\w+) -->\n).*?(<!-- end -->)",
        lambda at: f"{at[1]}{markdown(HEADS[at[2]], MAKE[at[2]](found))}\n{at[3]}",
        page,
        flags=re.S,
    )
