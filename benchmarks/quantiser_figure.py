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
TITLES = {"digits": "Digits", "cifar10": "CIFAR10", "femnist": "FEMNIST"}
BITS, ERRORS = (0.02, 20.0), (2e-6, 60.0)
MARKED = (2.0, 8.0, 32.0)  # values of tau


def draw(rows: list[Row], path: Path) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(1 + 3.6 * len(tasks), 4.3), layout="constrained")
        places = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, task in zip(places, tasks, strict=True):
            _panel(axes, task, [row for row in rows if row["task"] == task])
        places[0].set_ylabel("squared error of a client / squared length")
        handles, labels = places[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=150)


def _panel(axes: Axes, task: str, rows: list[Row]) -> None:
    axes.set(xscale="log", yscale="log", xlim=BITS, ylim=ERRORS)
    axes.set_title(
        f"{TITLES.get(task, task)}, {rows[0]['count']:,} numbers", loc="left", fontsize=10
    )
    axes.set_xlabel("bits per number on the wire")
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
    last = [r for r in rows if r["curve"] == "step" and r["round"] == rounds[-1]]
    for row in (r for r in last if r["setting"] in MARKED):
        axes.plot(row["bits"], row["error"], "o", color=COLOURS["step"], markersize=4)
        axes.annotate(
            f"τ = {row['setting']:g}", (row["bits"], row["error"]), (-5, -3),
            textcoords="offset points", fontsize=8, color=COLOURS["step"], ha="right", va="top",
        )  # fmt: skip
    said = ", ".join(map(str, rounds))
    axes.text(0.97, 0.97, f"rounds {said}\n(pale to full)", transform=axes.transAxes, fontsize=8,
              ha="right", va="top", color="#555555")  # fmt: skip


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
