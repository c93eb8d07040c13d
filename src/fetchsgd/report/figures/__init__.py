"""The page's figures as PNG and PDF, for papers and slides. Only this folder needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.figures.curves import curves, diagnostics
from fetchsgd.report.figures.scatter import frontiers, scatter
from fetchsgd.report.groups import Task
from fetchsgd.report.traffic import KINDS, figure_name


def write_figures(task: Task, stem: Path) -> list[Path]:
    """Write `<stem>-upload.png` and so on, and say what was written.

    There are figures of each count that some run has, of the frontiers if there are low-bit runs
    and others, and of diagnostics if a run was diagnosed.
    """
    written = []
    with matplotlib.rc_context({"font.size": 9, "pdf.fonttype": 42}):
        for count in task.counts:
            for kind in KINDS:
                figure = scatter(task, kind, count)
                written += _save(figure, stem, figure_name(kind, count))
        written += _save(curves(task), stem, "curves")
        if measured_in(task.runs):
            written += _save(diagnostics(task), stem, "diagnostics")
        if task.compares_low_bit:
            written += _save(frontiers(task), stem, "frontiers")
    return written


def _save(figure: Figure, stem: Path, name: str) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}-{name}.{ending}") for ending in ("png", "pdf")]
    # Without its date, the same runs give the same file.
    figure.savefig(paths[0], dpi=200)
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
