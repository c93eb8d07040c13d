"""The page's figures as PNG and PDF, for papers and slides. Only `figure*.py` need matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fetchsgd.report import text
from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.figure_curves import curves
from fetchsgd.report.figure_diagnostics import diagnostics
from fetchsgd.report.figure_scatter import frontiers, scatter
from fetchsgd.report.tasks import Task
from fetchsgd.report.traffic import KINDS


def write_figures(task: Task, stem: Path) -> list[Path]:
    """Write `<stem>-upload.png` and so on, and say what was written.

    A count that no run knows has no figures, frontiers need runs of both sorts, and diagnostics
    runs that were diagnosed.
    """
    written = []
    with matplotlib.rc_context({"font.size": 9, "pdf.fonttype": 42}):
        for count in task.counts:
            for kind in KINDS:
                figure = scatter(task, kind, count)
                written += _save(figure, stem, text.figure_name(kind, count))
        written += _save(curves(task), stem, "curves")
        if measured_in(task.runs):
            written += _save(diagnostics(task), stem, "diagnostics")
        if task.has_both_sorts:
            written += _save(frontiers(task), stem, "frontiers")
    return written


def _save(figure: Figure, stem: Path, name: str) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}-{name}.{ending}") for ending in ("png", "pdf")]
    # Without its date, the same runs give the same file.
    figure.savefig(paths[0], dpi=200)
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
