"""From a sweep file to checked runs."""

import pytest

from fetchsgd.errors import UserError
from fetchsgd.simulation.sweep import plan

BASE = {"task": {"name": "tinytask:tiny"}}


def names(entries):
    return [run.name for run in plan({**BASE, "sweep": entries}, "the test")]


def test_lists_make_every_combination():
    assert names([{"method.k": [5, 6], "method.cols": [20, 30]}]) == [
        "fetchsgd-k5-cols20", "fetchsgd-k5-cols30", "fetchsgd-k6-cols20", "fetchsgd-k6-cols30",
    ]  # fmt: skip
    assert names([{"method.name": "fedavg", "train.epochs": [1, 0.5], "local.epochs": 2}]) == [
        "fedavg-epochs1-local_epochs2", "fedavg-epochs0.5-local_epochs2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no .*sweep.* entries"),
        ({"sweep": []}, "has no .*sweep.* entries"),
        ({"sweep": [3]}, r"sweep must be written as sections \[\[sweep\]\], got 3"),
        ({"sweep": [{"k": 5}]}, 'write k in .*sweep.* as "section.k", in quotes'),
        ({"sweep": [{"method.k": []}]}, r"method.k = \[\] in \[\[sweep\]\] makes no run"),
        ({"sweep": [{"method.k": [5, 5]}]}, "two runs 'fetchsgd-k5'; they differ in nothing"),
        (
            {"sweep": [{"schedule.peak": [0.1234567, 0.12345671]}]},
            "two runs 'fetchsgd-peak0.123457', though their settings differ",
        ),
        ({"sweep": [{"method.k": [5, 99]}]}, "run 'fetchsgd-k99': method.k must be from 0 to 75"),
        ({"sweep": [{"method.kk": 5}]}, "no setting method.kk; did you mean 'k'"),
    ],
)
def test_mistakes_show_before_any_work(content, message):
    with pytest.raises(UserError, match=message):
        plan({**BASE, **content}, "the test")
