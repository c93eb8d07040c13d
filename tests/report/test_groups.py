"""Which runs are one point, which points are one series, and which are on the frontier."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

from fetchsgd.report import find_runs
from fetchsgd.report.groups import differing_settings, distinguishing_settings, group_by_task
from fetchsgd.report.page_data import group_details, group_name, group_status
from fetchsgd.report.settings import (
    DEPENDENT,
    USUAL,
    USUAL_SUMS,
    Series,
    compared_settings,
    series_of,
)
from fetchsgd.report.styles import series_styles
from fetchsgd.report.traffic import COUNTS, KINDS
from fetchsgd.runs.older import PAPERS_FORM
from fetchsgd.sums import Modular

PLAIN, LOW_BIT = Series("fetchsgd"), Series("fetchsgd", low_bit=True)


def only_task(folder):
    (task,) = group_by_task(find_runs([folder]))
    return task


def names(groups):
    return [group.runs[0].name for group in groups]


def test_seeds_are_one_point_at_their_mean(make_run, tmp_path):
    for seed, value, ratio in ((2, 0.90, 12.0), (0, 0.92, 8.0), (1, 0.94, 10.0)):
        make_run(f"s{seed}", seed=seed, value=value, wire=(ratio, ratio))
    (group,) = only_task(tmp_path).groups
    point = group.point("upload", "wire")
    assert [run.seed for run in group.runs] == [0, 1, 2]
    assert (point.value, point.compression) == (pytest.approx(0.92), pytest.approx(10))
    assert (point.low, point.high) == (0.90, 0.94)


@pytest.mark.parametrize(
    "other",
    [
        {"options": {"k": 5}},
        {"method": "local_topk"},
        {"task": "femnist"},
        {"epochs": 12.0},
        {"numbers": {"bits": 4}},
    ],
)
def test_runs_that_differ_in_more_than_their_seed_are_points_of_their_own(
    make_run, tmp_path, other
):
    make_run("one", options={"k": 50})
    make_run("other", **{"options": {"k": 50}, **other}, seed=1)
    groups = [group for task in group_by_task(find_runs([tmp_path])) for group in task.groups]
    assert len(groups) == 2


def test_a_setting_that_is_told_only_where_it_is_unusual_depends_on_no_other():
    """It would be absent where it is usual, as if it had no effect, and so distinguish nothing."""
    assert not {*USUAL, *USUAL_SUMS} & DEPENDENT.keys()


def test_a_run_of_an_older_version_is_a_seed_of_the_same_settings(make_run, tmp_path):
    make_run("old", seed=0, value=0.8, wire=None)
    make_run("new", seed=1, value=0.9)
    (group,) = only_task(tmp_path).groups
    assert group.point("overall", "wire").value == 0.9
    assert group.point("overall", "paper").value == pytest.approx(0.85)


def test_a_seed_that_diverged_is_named_and_not_averaged(make_run, tmp_path):
    make_run("a", seed=0, value=0.9)
    make_run("b", seed=1, value=0.8)
    make_run("c", seed=2, value=0.1, status="diverged")
    task = only_task(tmp_path)
    (group,) = task.groups
    details = dict(group_details(group, task, []))
    assert group.point("overall", "wire").low == 0.8
    assert group_name(group) == "a and 2 more seeds"
    assert group_status(group) == "mean of 2 seeds"
    assert details["mean accuracy"] == "85.00 %"
    assert details["min to max"] == "80.00 % to 90.00 %"
    assert details["seeds"] == "0, 1 (n = 2)"
    assert details["diverged, not in the mean"] == "seed 2"


def test_seeds_that_all_diverged_are_not_a_point(make_run, tmp_path):
    for seed in (0, 1):
        make_run(f"s{seed}", seed=seed, value=None, compression=None, status="diverged")
    task = only_task(tmp_path)
    assert task.groups[0].point("overall", "paper") is None
    assert ("accuracy", "–") in group_details(task.groups[0], task, [])


def test_details_name_bits_and_grid_and_both_counts(make_run, tmp_path):
    make_run("a", numbers={"bits": 4, "grid": "steps", "step": 0.25}, wire=(80.0, 80.0))
    make_run("b", numbers={"bits": 8, "grid": "float16"})
    task = only_task(tmp_path)
    found = {group.runs[0].name: dict(group_details(group, task, [])) for group in task.groups}
    assert found["a"]["upload.bits"] == "4"
    assert (found["a"]["download.grid"], found["a"]["download.step"]) == ("steps", "0.25")
    assert found["a"]["upload compression"] == "80× (paper 10×)"
    assert found["b"]["download.grid"] == "float16"
    assert "download.step" not in found["b"]


def test_details_show_what_distinguishes_runs_and_leave_out_what_is_the_same(make_run, tmp_path):
    for k in (5, 50):
        for step in (0.25, 0.5):
            options = {"k": k, "rows": 1, "momentum": 0.9}
            make_run(f"{k}-{step}", options=options, numbers={"grid": "steps", "step": step})
    make_run("other", method="uncompressed", options={"nesterov": True}, epochs=12.0)
    task = only_task(tmp_path)
    shown = distinguishing_settings(task.runs, "fetchsgd")
    own = [group for group in task.groups if group.series == PLAIN]
    found = [dict(group_details(group, task, shown)) for group in own]
    assert {(one["k"], one["download.step"]) for one in found} == {
        *(("5", "0.25"), ("5", "0.5"), ("50", "0.25"), ("50", "0.5"))
    }
    assert not any({"momentum", "local.batch_size"} & set(one) for one in found)
    assert distinguishing_settings(task.runs, "uncompressed") >= {"train.epochs", "download.grid"}
    assert "method.nesterov" not in distinguishing_settings(task.runs, "uncompressed")


def test_runs_from_before_there_were_windows_count_as_runs_without_one(make_run, tmp_path):
    old = {"k": 5, "error_reset": "zero", "hash": "fixed"}
    new = old | {"error": "vanilla", "recovery": "top_k", "window": 0, "window_form": "overlapping"}
    make_run("old", options=old, seed=0)
    make_run("new", options=new | {"window_eps": 0.5, "tau": 0.0}, seed=1)
    (group,) = only_task(tmp_path).groups
    assert len(group.runs) == 2
    make_run("windowed", options=new | {"error": "window", "window": 4})
    task = only_task(tmp_path)
    assert {"method.error", "method.k"} & distinguishing_settings(task.runs, PAPERS_FORM) == {
        "method.error"
    }
    assert len(task.groups) == 2


def test_what_stopped_early_is_not_compressed(make_run, tmp_path):
    make_run("bad", method="uncompressed", status="diverged", value=None, wire=(4.6, 4.6))
    (run,) = find_runs([tmp_path])
    assert run.compression("overall", "wire") is None
    assert run.traffic["wire"].bytes_sent > 0


def test_low_bit_runs_have_a_frontier_beside_that_of_their_method(make_run, tmp_path):
    make_run("plain", value=0.90, wire=(8.0, 8.0))
    make_run("bits8", value=0.91, wire=(30.0, 30.0), numbers={"bits": 8})
    make_run("bits2", value=0.89, wire=(90.0, 90.0), numbers={"bits": 2})
    task = only_task(tmp_path)
    assert task.series == [PLAIN, LOW_BIT]
    assert names(task.frontier_of(PLAIN, "overall", "wire")) == ["plain"]
    assert names(task.frontier_of(LOW_BIT, "overall", "wire")) == ["bits8", "bits2"]


def test_the_frontier_on_the_wire_is_that_of_the_numbers_on_the_wire(make_run, tmp_path):
    make_run("a", options={"k": 1}, value=0.90, compression=(10.0, 10.0), wire=(5.0, 5.0))
    make_run("b", options={"k": 2}, value=0.89, compression=(5.0, 5.0), wire=(10.0, 10.0))
    task = only_task(tmp_path)
    assert names(task.frontier_of(PLAIN, "upload", "paper")) == ["a"]
    assert names(task.frontier_of(PLAIN, "upload", "wire")) == ["a", "b"]


def test_a_tiny_gain_in_compression_puts_no_run_on_the_frontier(make_run, tmp_path):
    make_run("good", options={"k": 1}, value=0.79, wire=(4.0378, 4.0378))
    make_run("bad", options={"k": 2}, value=0.56, wire=(4.0379, 4.0379))
    assert names(only_task(tmp_path).frontier_of(PLAIN, "upload", "wire")) == ["good"]


def test_the_mean_of_the_seeds_decides_what_is_on_the_frontier(make_run, tmp_path):
    make_run("lucky", options={"k": 1}, seed=0, value=0.95, wire=(5.0, 5.0))
    make_run("luckless", options={"k": 1}, seed=1, value=0.75, wire=(5.0, 5.0))
    make_run("steady", options={"k": 2}, value=0.90, wire=(9.0, 9.0))
    assert names(only_task(tmp_path).frontier_of(PLAIN, "upload", "wire")) == ["steady"]


@pytest.mark.parametrize(
    ("wires", "counts", "first"),
    [
        ([(8.0, 8.0), (9.0, 9.0)], COUNTS, "wire"),
        ([(8.0, 8.0), None], COUNTS, "paper"),
        ([None, None], ("paper",), "paper"),
    ],
)
def test_the_wire_comes_first_where_every_finished_run_has_it(
    make_run, tmp_path, wires, counts, first
):
    for index, wire in enumerate(wires):
        make_run(f"r{index}", options={"k": index}, wire=wire)
    make_run("going", status="unfinished", wire=None)
    task = only_task(tmp_path)
    assert (task.counts, task.count) == (counts, first)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{}, {"numbers": {"bits": 4}}], True),
        ([{}, {"options": {"k": 5}}], False),
        ([{"numbers": {"bits": 4}}], False),
        ([{"wire": None}, {"numbers": {"bits": 4}}], False),
        ([{}, {"numbers": {"bits": 4}, "status": "diverged", "value": None}], False),
    ],
)
def test_frontiers_are_compared_if_both_plain_and_low_bit_runs_are_on_the_wire(
    make_run, tmp_path, runs, expected
):
    for index, options in enumerate(runs):
        make_run(f"r{index}", **options)
    assert only_task(tmp_path).compares_low_bit == expected


def test_diverged_and_unfinished_runs_are_never_on_the_frontier(study):
    for task in group_by_task(find_runs([study])):
        for kind in KINDS:
            front = [task.groups[index] for index in task.on_frontier(kind, "wire")]
            assert {group.series for group in front} == set(task.series)
            averaged = [run for group in front for run in group.drawn(kind, "wire")]
            assert {run.status for run in averaged} == {"finished"}


def test_a_diverged_run_with_the_best_numbers_is_not_on_the_frontier(make_run, tmp_path):
    make_run("good", options={"k": 1}, value=0.8, wire=(2.0, 2.0))
    make_run("bad", options={"k": 2}, value=0.9, wire=(9.0, 9.0), status="diverged")
    assert names(only_task(tmp_path).frontier_of(PLAIN, "overall", "wire")) == ["good"]


def test_no_two_series_look_the_same():
    methods = (
        "fetchsgd",
        PAPERS_FORM,
        "local_topk",
        "fedavg",
        "true_topk",
        "uncompressed",
        "new",
        "newer",
    )
    both = [Series(method, low_bit) for method in methods for low_bit in (False, True)]
    styles = series_styles(both)
    assert list(styles)[:2] == [PLAIN, LOW_BIT]
    assert styles[LOW_BIT].label == "FetchSGD, low-bit"
    for looks in (
        {(style.marker, style.hollow) for style in styles.values()},
        {style.look.light for style in styles.values()},
        {style.look.dark for style in styles.values()},
        {style.look.dash for style in styles.values()},
    ):
        assert len(looks) == len(both)


def test_plain_sgd_in_few_bits_is_not_called_uncompressed():
    both = [Series("uncompressed", low_bit) for low_bit in (False, True)]
    styles = series_styles(both)
    assert [styles[one].label for one in both] == ["Uncompressed", "SGD, low-bit"]


def test_sums_modulo_are_low_bit_and_tell_what_is_unusual_alone():
    upload = {"sum": "modular", "sum_bits": 12, "wrap_probability": 1e-3, "secure": True}
    found = compared_settings({"method": {"name": "fetchsgd", "k": 5}, "upload": upload})
    assert {key: value for key, value in found.items() if key.startswith("upload.s")} == {
        "upload.sum": "modular", "upload.sum_bits": 12, "upload.secure": True,
    }  # fmt: skip
    assert "upload.wrap_probability" not in found
    assert series_of("fetchsgd", found).low_bit
    plain = compared_settings({"method": {"name": "fetchsgd"}, "upload": {"sum": "plain"}})
    assert "upload.sum" not in plain
    assert not series_of("fetchsgd", plain).low_bit


def test_what_is_usual_of_sums_is_their_default():
    defaults = {f"upload.{field.name}": field.default for field in fields(Modular)}
    assert defaults == USUAL_SUMS | {"upload.sum_bits": 8}


@pytest.mark.parametrize(
    ("upload", "alike"),
    [
        ({}, True),
        ({"bits": 32}, True),
        ({"bits": 4}, False),
        ({"bits": 32, "sum": "modular"}, False),
        ({"quantiser": "shared_step", "density": 0.01}, False),
    ],
)
def test_weight_decay_by_whoever_suits_is_that_by_clients_who_send_floats(upload, alike):
    """As `Setup` decides. Runs of older versions say `clients`."""
    auto, clients, server = (
        compared_settings({"train": {"weight_decay_by": who}, "upload": upload})
        for who in ("auto", "clients", "server")
    )
    assert (auto == clients) == alike
    assert auto != server != clients


@pytest.mark.parametrize(
    ("told", "differs"),
    [
        ([("auto", 32), ("auto", 4)], False),
        ([("clients", 32), ("auto", 32), ("auto", 4)], False),
        ([("clients", 32), ("auto", 32), ("clients", 4)], False),
        ([("auto", 32), ("clients", 4), ("auto", 4)], True),
        ([("auto", 32), ("server", 32)], True),
    ],
)
def test_who_decays_weights_is_shown_where_runs_differ_in_it(told, differs):
    runs = [
        SimpleNamespace(
            settings=compared_settings(
                {"train": {"weight_decay_by": who}, "upload": {"bits": bits}}
            )
        )
        for who, bits in told
    ]
    assert ("train.weight_decay_by" in differing_settings(runs)) == differs
