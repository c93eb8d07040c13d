"""The page: one HTML file that holds its own style, script and data, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from fetchsgd.formatting import UNKNOWN, plural
from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.groups import Task, differing_settings
from fetchsgd.report.page_data import page_json
from fetchsgd.report.runs import STATUSES, Run
from fetchsgd.report.settings import Series, setting_name, setting_value
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.table import table_html
from fetchsgd.report.traffic import COUNTED, KINDS, PAPER, WIRE, figure_name

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

# What the two counts are; runs of older versions have only the second.
_PAPER_COUNT = (
    "<b>as the paper counts</b>: 4 bytes for each number in a message that is not zero, "
    "and positions are free."
)
_BOTH_COUNTS = (
    "Bytes are counted <b>on the wire</b>: all that are really sent, with positions, scales and "
    f"headers and after entropy coding; and {_PAPER_COUNT}"
)


def render_page(tasks: Sequence[Task], figure_stems: Mapping[str, str]) -> str:
    """The page of these tasks; it links the figures of those that have a stem."""
    runs = [run for task in tasks for run in task.runs]
    styles = series_styles(run.series for run in runs)
    return Template(_asset("page.html")).substitute(
        title=escape("Quality against communication: " + ", ".join(task.name for task in tasks)),
        style=_asset("page.css") + _series_colours(styles),
        counting=_counting(tasks),
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


def _series_colours(styles: Mapping[Series, Style]) -> str:
    looks = list(enumerate(styles.values()))
    light = "".join(f".m{index}{{--hue:{style.look.light}}}" for index, style in looks)
    dark = "".join(f".m{index}{{--hue:{style.look.dark}}}" for index, style in looks)
    hollow = "".join(
        f".m{index}{{--fill:var(--paper);--edge:var(--hue);--edge-width:1.75}}"
        for index, style in looks
        if style.hollow
    )
    return f"{light}{hollow}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"


def _counting(tasks: Sequence[Task]) -> str:
    both = any(WIRE in task.counts for task in tasks)
    return _BOTH_COUNTS if both else f"Bytes are counted {_PAPER_COUNT}"


def _counts(runs: Sequence[Run]) -> str:
    parts = [f"<li><b>{len(runs)}</b> {'run' if len(runs) == 1 else 'runs'}</li>"]
    for status in STATUSES:
        number = sum(run.status == status for run in runs)
        parts.append(f"<li><b>{number}</b> {status}</li>")
    return "".join(parts)


def _facts(runs: Sequence[Run]) -> str:
    """Where the numbers come from, according to the runs that have ended."""
    packages = sorted({name for run in runs for name in run.versions})
    facts = {
        "Hardware": _distinct(run.hardware for run in runs),
        "Commit": _distinct(run.commit for run in runs),
        "Versions": "; ".join(
            f"{name} {_distinct(run.versions.get(name) for run in runs)}" for name in packages
        ),
    }
    return "".join(
        f"<dt>{name}</dt><dd>{escape(value or UNKNOWN)}</dd>" for name, value in facts.items()
    )


def _distinct(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))


def _section(index: int, task: Task, styles: Mapping[Series, Style], stem: str | None) -> str:
    return Template(_asset("section.html")).substitute(
        index=index,
        name=escape(task.name),
        metric=escape(task.metric),
        better="higher" if task.higher_is_better else "lower",
        runs=plural(len(task.runs), "run"),
        count_switch=_count_switch(task),
        scatters="\n".join(_scatter(kind, task, stem) for kind in KINDS),
        notes=_frontiers_note(task, stem)
        + _different_baselines(task)
        + _numbers(task)
        + _undrawn(task)
        + _paper_only(task),
        curve_links=_links(stem, "curves"),
        diagnostics=_diagnostics(task, _links(stem, "diagnostics")),
        table=table_html(task, styles),
        settings=_settings(task, styles),
    )


def _count_switch(task: Task) -> str:
    """Empty if all runs were counted only as in the paper: there is no choice."""
    if WIRE not in task.counts:
        return ""
    buttons = "".join(
        f'<button type="button" data-value="{count}" aria-pressed="{_truth(count == task.count)}">'
        f"{COUNTED[count].capitalize()}</button>"
        for count in task.counts
    )
    return (
        '<div class="switch" role="group" aria-label="How bytes are counted" data-switch="count">'
        f"{buttons}</div>"
    )


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _scatter(kind: str, task: Task, stem: str | None) -> str:
    links = "".join(
        _links(stem, figure_name(kind, count), count, hidden=count != task.count)
        for count in task.counts
    )
    return (
        f"<figure><figcaption><h3>{kind.capitalize()} compression</h3>{links}"
        f'</figcaption><div class="chart" data-chart="{kind}"></div></figure>'
    )


def _links(stem: str | None, figure: str, count: str = "", hidden: bool = False) -> str:
    """Links to a figure's files; with a count, they are shown only while that is chosen."""
    if stem is None:
        return ""
    links = (
        f'<a href="{escape(stem)}-{figure}.{ending}">{ending.upper()}</a>'
        for ending in ("png", "pdf")
    )
    chosen = (f' data-count="{count}"' if count else "") + (" hidden" if hidden else "")
    return f'<span class="files"{chosen}>{" ".join(links)}</span>'


def _frontiers_note(task: Task, stem: str | None) -> str:
    if stem is None or not task.compares_low_bit:
        return ""
    links = _links(stem, "frontiers")
    return f'<p class="note">Only the frontiers, on the wire, in one figure:{links}</p>'


def _different_baselines(task: Task) -> str:
    """Compressions that are relative to different things are not to be compared."""
    lengths = task.baselines
    if len(lengths) < 2:
        return ""
    told = " and ".join([", ".join(f"{length:g}" for length in lengths[:-1]), f"{lengths[-1]:g}"])
    return (
        '<p class="note warning"><b>Caution:</b> compression is relative to uncompressed runs of '
        f"different length, {told} epochs (train.baseline_epochs), so it cannot be compared "
        "between these runs; bytes sent can.</p>"
    )


def _numbers(task: Task) -> str:
    if all(number is None for number in task.numbers):
        return ""
    return (
        '<p class="note">Where a method has several settings, numbers tell them apart: they are '
        "those of the table, and a point or a curve that is pointed at says its settings.</p>"
    )


def _undrawn(task: Task) -> str:
    """Says which runs are not points in the figures, so that none is missed."""
    absent = [run for run in task.runs if not all(run.can_be_drawn(kind, PAPER) for kind in KINDS)]
    if not absent:
        return ""
    names = ", ".join(f"{escape(run.name)} ({_state(run)})" for run in absent)
    verb = "is" if len(absent) == 1 else "are"
    listed = plural(len(absent), "run")
    return (
        f'<p class="note">{listed} without a final value or compression {verb} in the curves and '
        f"the table only, and in no mean: {names}.</p>"
    )


def _state(run: Run) -> str:
    return f"{run.status} after {plural(run.rounds, 'round')}"


def _paper_only(task: Task) -> str:
    """Says which runs are points only as the paper counts."""
    drawn = [run for run in task.runs if run.can_be_drawn("overall", PAPER)]
    old = [run for run in drawn if not run.can_be_drawn("overall", WIRE)]
    if WIRE not in task.counts or not old:
        return ""
    names = ", ".join(escape(run.name) for run in old)
    verb = "was" if len(old) == 1 else "were"
    return (
        f'<p class="note">{plural(len(old), "run")} of an older version {verb} not counted on '
        f"the wire, and can be seen only as the paper counts: {names}.</p>"
    )


def _diagnostics(task: Task, links: str) -> str:
    """One figure for each quantity that was measured; nothing if no run was diagnosed."""
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


def _settings(task: Task, styles: Mapping[Series, Style]) -> str:
    """What the table and the tooltips need not repeat: settings that runs share.

    First those that are the same in all runs, and then those in all runs of each method.
    """
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
    """The settings that all of these runs share, as they are shown."""
    differing = set(differing_settings(runs))
    return {
        key: f"{setting_name(key)}={setting_value(value)}"
        for key, value in runs[0].settings.items()
        if key not in differing and value not in ("", [])
    }
