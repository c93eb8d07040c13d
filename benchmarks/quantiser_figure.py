"""The figure of quantisers.py: error against bits, a panel for each task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = dict[str, Any]
NAMES = {
    "step": "one step per message",
    "bits": "2 to 8 bits, a scale for 256",
    "bfloat16": "bfloat16",
    "eden": "EDEN",
}
COLOURS = {"step": "#0b6e99", "bits": "#c8553d", "bfloat16": "#7a5195", "eden": "#3d8f5f"}
MARKS = {"step": "", "bits": "s", "bfloat16": "D", "eden": "^"}
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR10",
    "femnist": "FEMNIST stand-in",
    "personachat": "PersonaChat, SmolLM2-135M",
}
BITS, ERRORS = (0.012, 20.0), (2e-6, 60.0)
MARKED = (2.0, 8.0, 32.0)  # values of tau


def draw(rows: list[Row], path: Path) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        across = min(len(tasks), 2)
        down = -(-len(tasks) // across)
        figure = Figure(figsize=(4.3 * across, 0.6 + 3.6 * down), layout="constrained")
        places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes in places.flat[len(tasks) :]:
            axes.axis("off")
        for axes, task in zip(places.flat, tasks, strict=False):
            _panel(axes, task, [row for row in rows if row["task"] == task])
        for axes in places[:, 0]:
            axes.set_ylabel("squared error / squared length")
        for axes in places[-1]:
            axes.set_xlabel("bits per number on the wire")
        handles, labels = places[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=150)


def _panel(axes: Axes, task: str, rows: list[Row]) -> None:
    axes.set(xscale="log", yscale="log", xlim=BITS, ylim=ERRORS)
    axes.set_title(
        f"{TITLES.get(task, task)}, {rows[0]['count']:,} numbers", loc="left", fontsize=10
    )
    axes.set_xticks([0.03, 0.1, 0.3, 1, 3, 10], ["0.03", "0.1", "0.3", "1", "3", "10"])
    axes.minorticks_off()
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    _bounds(axes)
    rounds = sorted({row["round"] for row in rows})
    for curve in NAMES:
        for i, round in enumerate(rounds):
            points = [r for r in rows if r["curve"] == curve and r["round"] == round]
            if points:
                _curve(axes, curve, points, (i + 1) / len(rounds))
    others = [r for r in rows if r["curve"] == "eden" and r["round"] == rounds[-1]]
    _mark(axes, [r for r in rows if r["curve"] == "step"], rounds, others)
    said = ", ".join(map(str, rounds))
    axes.text(0.97, 0.97, f"rounds {said}\n(pale to full)", transform=axes.transAxes, fontsize=8,
              ha="right", va="top", color="#555555")  # fmt: skip


def _mark(axes: Axes, rows: list[Row], rounds: list[int], others: list[Row]) -> None:
    """Some values of tau on the last curve, on the side where no other curve is."""
    middle = {row["round"]: row["bits"] for row in rows if row["setting"] == MARKED[1]}
    right = middle[rounds[-1]] == max(middle.values()) and len(rounds) > 1
    marked = [row for row in rows if row["round"] == rounds[-1] and row["setting"] in MARKED]
    right = right and not any(_is_beside(other, row) for other in others for row in marked)
    offset, side = ((6, 3), "left") if right else ((-6, -3), "right")
    for row in rows:
        if row["round"] == rounds[-1] and row["setting"] in MARKED:
            axes.plot(row["bits"], row["error"], "o", color=COLOURS["step"], markersize=4.5)
            axes.annotate(
                f"τ = {row['setting']:g}", (row["bits"], row["error"]), offset,
                textcoords="offset points", fontsize=8, color=COLOURS["step"], ha=side,
                va="bottom" if right else "top", zorder=5,
                bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip


def _is_beside(other: Row, row: Row) -> bool:
    """Whether it is where a label would be, to the right and above."""
    right, above = other["bits"] / row["bits"], other["error"] / row["error"]
    return 1 < right < 3 and 1 < above < 3


def _curve(axes: Axes, curve: str, points: list[Row], strength: float) -> None:
    points = sorted(points, key=lambda row: row["bits"])
    last = strength == 1
    axes.plot(
        [row["bits"] for row in points],
        [row["error"] for row in points],
        color=COLOURS[curve],
        alpha=0.25 + 0.75 * strength**2,
        linewidth=2 if curve == "step" else 1,
        marker=MARKS[curve],
        markersize=4,
        label=NAMES[curve] if last else None,
    )


def _bounds(axes: Axes) -> None:
    bits = np.geomspace(*BITS, 300)
    log4 = 2 * math.log(2)
    unbiased = 1 / np.expm1(np.minimum(log4 * bits, 600))
    axes.plot(
        bits, unbiased, color="#555555", linewidth=1, label="best unbiased code, normal numbers"
    )
    axes.plot(bits, np.exp(-log4 * bits), color="#555555", linewidth=1, linestyle=(0, (4, 3)),
              label="Shannon's bound, normal numbers")  # fmt: skip
