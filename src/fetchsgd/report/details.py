"""What a tooltip says about a run, or about runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fetchsgd.report import text
from fetchsgd.report.runs import FINISHED, UNFINISHED, Run
from fetchsgd.report.seeds import Group
from fetchsgd.report.tasks import Task
from fetchsgd.report.traffic import KINDS, PAPER, WIRE, Traffic

Details = list[tuple[str, str]]

# Always shown with a run: how much is sent, and how. Others are shown where they tell it apart.
_ALWAYS = {
    *("method.k", "method.rows", "method.cols"),
    *("upload.bits", "download.grid", "download.step"),
}


def run_details(run: Run, task: Task, telling: Collection[str]) -> Details:
    """Pairs of a name and a text."""
    so_far = " so far" if run.status == UNFINISHED else ""
    return [
        (task.metric + so_far, text.measured(run.value, task.metric)),
        *_compressions(lambda kind, count: run.compression(kind, count), task),
        ("seed", _seeds([run])),
        *_settings(run, telling),
        *_length(run),
        *_effort(run, task),
    ]


def group_name(group: Group) -> str:
    others = len(group.runs) - 1
    return group.runs[0].name + (f" and {text.count(others, 'more seed')}" if others else "")


def group_status(group: Group) -> str:
    """What stands beside the method's name: the state of a run, or of how many this is the mean."""
    if len(group.runs) == 1:
        return group.runs[0].status
    return f"mean of {text.count(len(_finished(group)), 'seed')}"


def group_details(group: Group, task: Task, telling: Collection[str]) -> Details:
    """As of a run, with the seeds, the range, and those that were left out of the mean."""
    if len(group.runs) == 1:
        return run_details(group.runs[0], task, telling)
    typical = (_finished(group) or group.runs)[0]
    return [
        *_mean_and_range(group, task),
        *_compressions(lambda kind, count: _mean_compression(group, kind, count), task),
        *_left_out(group),
        *_settings(typical, telling),
        *_length(typical),
    ]


def _finished(group: Group) -> list[Run]:
    return group.drawn("overall", PAPER)


def _mean_and_range(group: Group, task: Task) -> Details:
    point, averaged = group.point("overall", PAPER), _finished(group)
    if point is None:
        return [(task.metric, text.NOTHING)]
    low, high = text.measured(point.low, task.metric), text.measured(point.high, task.metric)
    return [
        (f"mean {task.metric}", text.measured(point.value, task.metric)),
        ("min to max", f"{low} to {high}"),
        ("seeds", f"{_seeds(averaged)} (n = {len(averaged)})"),
    ]


def _left_out(group: Group) -> Details:
    """Seeds that diverged or still run have no value that a mean could hold."""
    others = [run for run in group.runs if run.status != FINISHED]
    statuses = dict.fromkeys(run.status for run in others)
    return [
        (f"{status}, not in the mean", f"seed {_seeds([r for r in others if r.status == status])}")
        for status in statuses
    ]


def _mean_compression(group: Group, kind: str, count: str) -> float | None:
    point = group.point(kind, count)
    return point.compression if point else None


def _compressions(ratio: Callable[[str, str], float | None], task: Task) -> Details:
    return [
        (f"{kind} compression", _both({c: text.times(ratio(kind, c)) for c in task.counts}))
        for kind in KINDS
    ]


def _settings(run: Run, telling: Collection[str]) -> Details:
    # The epochs that were done are told below, and are those of the settings unless it diverged.
    told = [key for key in run.settings if key in _ALWAYS or key in telling]
    keys = [key for key in told if key != "train.epochs"]
    return [(text.setting_name(key), text.setting_value(run.settings[key])) for key in keys]


def _length(run: Run) -> Details:
    return [
        ("epochs", text.setting_value(float(run.epochs))),
        ("rounds", f"{run.rounds:,}"),
    ]


def _effort(run: Run, task: Task) -> Details:
    def sent(bytes_of: Callable[[Traffic], int]) -> str:
        traffic = {count: run.traffic.get(count) for count in task.counts}
        return _both({c: text.size(bytes_of(t) if t else None) for c, t in traffic.items()})

    return [
        ("uploaded", sent(lambda traffic: traffic.upload_bytes)),
        ("downloaded", sent(lambda traffic: traffic.download_bytes)),
        ("time", text.duration(run.seconds)),
    ]


def _both(shown: dict[str, str]) -> str:
    """One number as it is on the wire, with the paper's behind it."""
    return f"{shown[WIRE]} (paper {shown[PAPER]})" if WIRE in shown else shown[PAPER]


def _seeds(runs: Sequence[Run]) -> str:
    return ", ".join(text.NOTHING if run.seed is None else str(run.seed) for run in runs)
