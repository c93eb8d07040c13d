"""The page's figures of diagnostics: one for each quantity that was measured."""

from __future__ import annotations

from html import escape

from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.tasks import Task


def diagnostics_html(task: Task, links: str) -> str:
    """Nothing where no run was diagnosed."""
    quantities = measured_in(task.runs)
    if not quantities:
        return ""
    figures = "\n".join(
        f"<figure><figcaption><h4>{escape(quantity.title)}</h4></figcaption>"
        f'<div class="chart" data-chart="{name}"></div></figure>'
        for name, quantity in quantities.items()
    )
    meanings = "".join(
        f"<dt>{escape(quantity.title)}</dt><dd>{escape(quantity.meaning)}</dd>"
        for quantity in quantities.values()
    )
    return (
        f'<div class="diagnostics"><div class="caption"><h3>Diagnostics</h3>{links}</div>'
        f"<details><summary>What was measured</summary><dl>{meanings}</dl></details>"
        f'<div class="scatters">\n{figures}\n</div></div>'
    )
