"""The page: one HTML file that holds its own style, script and data, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from fetchsgd.report import text
from fetchsgd.report.data import page_json
from fetchsgd.report.page_table import table_html
from fetchsgd.report.runs import KINDS, STATUSES, Run
from fetchsgd.report.styles import Style, method_styles
from fetchsgd.report.tasks import Task

# The order matters: each script uses what the ones before it define.
_SCRIPTS = (
    "scales.js",
    "svg.js",
    "labels.js",
    "tooltip.js",
    "scatter.js",
    "curves.js",
    "table.js",
    "page.js",
)


def render_page(tasks: Sequence[Task], figure_stems: Mapping[str, str]) -> str:
    """The page of these tasks; it links the figures of those that have a stem."""
    runs = [run for task in tasks for run in task.runs]
    styles = method_styles(run.method for run in runs)
    return Template(_asset("page.html")).substitute(
        title=escape("Quality against communication: " + ", ".join(task.name for task in tasks)),
        style=_asset("page.css") + _method_colours(styles),
        counts=_counts(runs),
        facts=_facts(runs),
        sections="\n".join(
            _section(index, task, styles, figure_stems.get(task.name))
            for index, task in enumerate(tasks)
        ),
        data=page_json(tasks, styles),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def _asset(name: str) -> str:
    return (files("fetchsgd.report") / "assets" / name).read_text(encoding="utf-8")


def _method_colours(styles: Mapping[str, Style]) -> str:
    looks = list(enumerate(styles.values()))
    light = "".join(f".m{index}{{--hue:{style.light}}}" for index, style in looks)
    dark = "".join(f".m{index}{{--hue:{style.dark}}}" for index, style in looks)
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"


def _counts(runs: Sequence[Run]) -> str:
    parts = [f"<li><b>{len(runs)}</b> {'run' if len(runs) == 1 else 'runs'}</li>"]
    for status in STATUSES:
        number = sum(run.status == status for run in runs)
        parts.append(f"<li><b>{number}</b> {status}</li>")
    return "".join(parts)


def _facts(runs: Sequence[Run]) -> str:
    """Where the numbers come from, as far as runs that have ended say so."""
    packages = sorted({name for run in runs for name in run.versions})
    facts = {
        "Hardware": _distinct(run.hardware for run in runs),
        "Commit": _distinct(run.commit for run in runs),
        "Versions": "; ".join(
            f"{name} {_distinct(run.versions.get(name) for run in runs)}" for name in packages
        ),
    }
    return "".join(
        f"<dt>{name}</dt><dd>{escape(value or text.NOTHING)}</dd>" for name, value in facts.items()
    )


def _distinct(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))


def _section(index: int, task: Task, styles: Mapping[str, Style], stem: str | None) -> str:
    return Template(_asset("section.html")).substitute(
        index=index,
        name=escape(task.name),
        metric=escape(task.metric),
        better="higher" if task.higher_is_better else "lower",
        runs=text.count(len(task.runs), "run"),
        scatters="\n".join(_scatter(kind, stem) for kind in KINDS),
        undrawn=_undrawn(task),
        curve_links=_links(stem, "curves"),
        table=table_html(task, styles),
    )


def _scatter(kind: str, stem: str | None) -> str:
    return (
        f"<figure><figcaption><h3>{kind.capitalize()} compression</h3>{_links(stem, kind)}"
        f'</figcaption><div class="chart" data-chart="{kind}"></div></figure>'
    )


def _links(stem: str | None, figure: str) -> str:
    if stem is None:
        return ""
    links = (
        f'<a href="{escape(stem)}-{figure}.{ending}">{ending.upper()}</a>'
        for ending in ("png", "pdf")
    )
    return f'<span class="files">{" ".join(links)}</span>'


def _undrawn(task: Task) -> str:
    """Says which runs are no points in the figures, so that none goes missing unnoticed."""
    absent = [run for run in task.runs if not all(run.can_be_drawn(kind) for kind in KINDS)]
    if not absent:
        return ""
    names = ", ".join(f"{escape(run.name)} ({run.status})" for run in absent)
    verb = "is" if len(absent) == 1 else "are"
    listed = text.count(len(absent), "run")
    return (
        f'<p class="note">{listed} without a final value or compression {verb} in the curves and '
        f"the table only: {names}.</p>"
    )
