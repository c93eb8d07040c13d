"""The settings that the table and the tooltips need not repeat, since runs share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fetchsgd.report import text
from fetchsgd.report.runs import Run
from fetchsgd.report.series import Series
from fetchsgd.report.styles import Style
from fetchsgd.report.tasks import Task, differing_settings


def settings_html(task: Task, styles: Mapping[Series, Style]) -> str:
    """A list: what is the same in all runs, and then in all runs of each method."""
    everywhere = _shared(task.runs)
    names = {series.method: style.method for series, style in styles.items()}
    rows = {"All runs": everywhere} if len({run.method for run in task.runs}) > 1 else {}
    for method in dict.fromkeys(run.method for run in task.runs):
        own = _shared([run for run in task.runs if run.method == method])
        rows[names[method]] = {key: own[key] for key in own if not rows or key not in everywhere}
    entries = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(', '.join(shown.values()))}</dd>"
        for name, shown in rows.items()
        if shown
    )
    return f"<details><summary>Settings that do not differ</summary><dl>{entries}</dl></details>"


def _shared(runs: Sequence[Run]) -> dict[str, str]:
    """The settings that all of these have and share, each as it is shown."""
    differing = set(differing_settings(runs))
    return {
        key: f"{text.setting_name(key)}={text.setting_value(value)}"
        for key, value in runs[0].settings.items()
        if key not in differing and value not in ("", [])
    }
