"""What a figure says about itself, since it may stand alone in a paper."""

from __future__ import annotations

from fetchsgd.report import text
from fetchsgd.report.runs import DIVERGED
from fetchsgd.report.seeds import Group
from fetchsgd.report.tasks import Task


def scatter_note(task: Task, kind: str, count: str) -> str:
    """For every group as a point."""
    front = task.in_front(kind, count)
    drawn = {index for index, group in enumerate(task.groups) if group.point(kind, count)}
    faint = "Faint: not on the frontier of its method." if drawn - front else ""
    return _sentences(_seeds(task, "bars"), faint, _diverged(task, "not drawn"))


def frontiers_note(task: Task) -> str:
    left_out = sum(not trains(group, task) for group in task.groups)
    far = f"{text.count(left_out, 'setting')} left out: a seed is below half the best accuracy."
    return _sentences(_seeds(task, "bars"), far if left_out else "", _diverged(task, "not drawn"))


def trains(group: Group, task: Task) -> bool:
    """Whether all its seeds learn something; ones that do not would squeeze all others together."""
    points = [point for other in task.groups if (point := other.point("overall", task.count))]
    own = group.point("overall", task.count)
    if own is None or task.metric != "accuracy":
        return True
    return own.low >= max(point.value for point in points) / 2


def curves_note(task: Task) -> str:
    faint = "Faint: not on the frontier of overall compression."
    behind = len(task.in_front("overall", task.count)) < len(task.groups)
    ended = _diverged(task, "faint, ends early")
    return _sentences(_seeds(task, "shades"), faint if behind else "", ended)


def _seeds(task: Task, drawn_as: str) -> str:
    """Of how many runs a point is the mean: one seed says less than three."""
    averaged = [len(group.drawn("overall", task.count)) for group in task.groups]
    known = [number for number in averaged if number]
    if not known or max(known) == 1:
        return ""
    least, most = min(known), max(known)
    numbers = str(most) if least == most else f"{least} to {most}"
    return f"Means of {numbers} seeds; {drawn_as} from the worst to the best seed."


def _diverged(task: Task, how: str) -> str:
    number = sum(run.status == DIVERGED for run in task.runs)
    return f"{text.count(number, 'run')} diverged ({how})." if number else ""


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)
