"""Reading runs: finished, unfinished, of older versions, broken; and their curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fetchsgd.report import ReportError, find_runs, load_run, summary_table, table_text
from fetchsgd.report.curves import loss_curve, mean_curve, metric_curve
from fetchsgd.report.groups import group_by_task
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run as Training


def edit_result(folder, **changes):
    path = folder / "result.json"
    result = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in result.items() if value != "absent"}))


def test_a_finished_run(make_run):
    run = load_run(make_run("one", options={"k": 500, "cols": 2000}, value=0.91, seed=3))
    assert (run.name, run.status, run.method, run.task) == (
        "one",
        "finished",
        "fetchsgd",
        "cifar10",
    )
    assert (run.value, run.seed, run.rounds) == (0.91, 3, 2400)
    assert run.compression("upload", "paper") == 10
    assert run.compression("upload", "wire") == 8
    assert run.traffic["wire"].bytes_sent == run.curve[-1].bytes_sent["wire"]
    assert run.settings["method.k"] == 500
    assert run.settings["local.epochs"] == 1
    assert not {"train.seed", "task.name", "method.name"} & set(run.settings)
    assert run.curve[-1].metric == pytest.approx(0.91)
    assert run.curve[1].metric is None
    assert run.curve[0].train_loss is None


def test_an_unfinished_run_has_what_was_logged_before_the_broken_line(make_run):
    run = load_run(make_run("going", status="unfinished", seed=2))
    assert (run.name, run.status, run.seed, run.metric) == ("going", "unfinished", 2, "accuracy")
    assert len(run.curve) == 20
    assert run.rounds == run.curve[-1].round
    assert run.value == [line.metric for line in run.curve if line.metric is not None][-1]
    for traffic in run.traffic.values():
        assert set(traffic.compression.values()) == {None}
    assert run.traffic["wire"].bytes_sent == run.curve[-1].bytes_sent["wire"] > 0


def test_a_run_that_has_logged_nothing_yet(make_run):
    folder = make_run(status="unfinished")
    (folder / "metrics.jsonl").write_text("")
    run = load_run(folder)
    assert (run.value, run.metric, run.rounds, run.curve) == (None, None, 0, ())


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder of a run with a task and a metric of its own, which was stopped."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    given = {"task": {"name": "custom_task:sensors"}, "method": {"name": "uncompressed"}}
    training = Training(resolve(given, ["peak=0.001", "epochs=8", "eval_every=2"]))

    def stop(seen):
        if seen.round > 0.6 * seen.rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.execute(tmp_path / "stopped", watch=stop)
    return tmp_path / "stopped"


def test_an_unfinished_run_with_a_metric_of_its_own(stopped):
    run = load_run(stopped)
    assert (run.status, run.task) == ("unfinished", "sensors")
    assert (run.metric, run.higher_is_better) == ("squared_error", False)
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert [point.metric for point in run.curve] == [line["squared_error"] for line in lines]
    assert run.value == lines[-1]["squared_error"]
    (task,) = group_by_task([run])
    assert task.axis_title == "Test squared_error (lower is better)"
    assert f"{run.value:#.4g}" in table_text(summary_table([run]))


def test_a_metric_is_known_before_the_first_evaluation(stopped):
    (stopped / "metrics.jsonl").write_text("")
    run = load_run(stopped)
    assert (run.metric, run.higher_is_better, run.value) == ("squared_error", False, None)


def test_a_folder_that_does_not_say_what_it_measures(stopped):
    """As older versions left them: only the metrics of the tasks here are known."""
    (stopped / "about.json").unlink()
    run = load_run(stopped)
    assert (run.metric, run.value, run.task) == (None, None, "custom_task:sensors")


def test_what_is_not_finite_is_unknown(make_run):
    folder = make_run(status="diverged", value=None)
    edit_result(folder, value=float("nan"), upload_compression=float("inf"))
    run = load_run(folder)
    assert run.value is None
    assert run.compression("upload", "paper") is None


@pytest.mark.parametrize("status", ["finished", "unfinished"])
def test_a_run_of_an_older_version_is_counted_only_as_in_the_paper(make_run, status):
    run = load_run(make_run(wire=None, status=status))
    assert set(run.traffic) == {"paper"}
    assert run.compression("upload", "wire") is None
    assert not run.can_be_drawn("overall", "wire")
    assert set(metric_curve(run).bytes) == {"paper"}
    assert run.settings["upload.bits"] == 32
    assert run.settings["download.grid"] == "float32"


@pytest.mark.parametrize(
    ("numbers", "low_bit"),
    [
        ({}, False),
        ({"step": 0.5}, False),  # which only the grid "steps" looks at
        ({"bits": 16}, True),
        ({"bits": 2, "grid": "steps"}, True),
        ({"grid": "steps"}, False),  # the default for this method
        ({"grid": "bfloat16"}, True),
    ],
)
def test_fewer_bits_or_another_grid_make_a_series_of_their_own(make_run, numbers, low_bit):
    run = load_run(make_run(numbers=numbers))
    assert run.series == ("fetchsgd", low_bit)
    assert ("download.step" in run.settings) == (numbers.get("grid") == "steps")


def test_runs_are_found_at_any_depth_and_once(make_run, tmp_path):
    make_run("a/b/deep")
    make_run("flat")
    (tmp_path / "runs" / "no-metrics").mkdir()
    (tmp_path / "runs" / "no-metrics" / "config.toml").write_text("")
    runs = find_runs([tmp_path, tmp_path / "runs" / "flat"])
    assert sorted(Path(run.source).name for run in runs) == ["deep", "flat"]


def test_no_run_folder(tmp_path):
    with pytest.raises(ReportError, match=r"no run folder found; .* config\.toml"):
        find_runs([tmp_path])
    with pytest.raises(ReportError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"upload_bytes": "absent"}, r"result\.json: the field 'upload_bytes' is missing"),
        ({"config": "absent"}, r"the field 'config' is missing"),
        ({"value": "high"}, r"the field 'value' must be a number or null, got 'high'"),
        ({"value": 93.0}, r"must lie in \[0, 1\], got 93"),
        ({"seed": 1.5}, r"the field 'seed' must be a whole number, got 1\.5"),
        ({"seconds": None}, r"the field 'seconds' must be a finite number, got None"),
        ({"higher_is_better": 1}, r"the field 'higher_is_better' must be true or false"),
        ({"versions": []}, r"the field 'versions' must be a table"),
        ({"name": 7}, r"the field 'name' must be a string, got 7"),
        ({"status": "done"}, r"'status' must be 'finished' or 'diverged', got 'done'"),
        ({"overall_compression": 0}, r"'overall_compression' must be positive, got 0"),
        ({"wire_upload_compression": -1}, r"'wire_upload_compression' must be positive, got -1"),
        ({"wire_download_bytes": "absent"}, r"the field 'wire_download_bytes' is missing"),
    ],
)
def test_a_result_that_is_wrong_names_the_field(make_run, changes, sentence):
    folder = make_run()
    edit_result(folder, **changes)
    with pytest.raises(ReportError, match=sentence) as caught:
        load_run(folder)
    assert str(caught.value).startswith(str(folder / "result.json"))


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("result.json", "{", r"result\.json: not valid JSON"),
        ("result.json", "[1]", r"result\.json: must hold one JSON object, got list"),
        ("metrics.jsonl", '{"round"\n{}\n', r"metrics\.jsonl, line 1: not valid JSON"),
        ("metrics.jsonl", "3\n", r"metrics\.jsonl, line 1: must hold one JSON object, got 3"),
        ("metrics.jsonl", '{"epoch": 1}\n', r"line 1: the field 'round' is missing"),
    ],
)
def test_a_file_that_is_broken_is_named(make_run, file, text, sentence):
    folder = make_run()
    (folder / file).write_text(text)
    with pytest.raises(ReportError, match=sentence):
        load_run(folder)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("config.toml", "= 3", r"config\.toml is not valid TOML"),
        ("config.toml", "[task]\nname = 'x'\n", r"config\.toml: the field 'method' is missing"),
        (
            "config.toml",
            "[task]\n[method]\nname = 'x'\n[train]",
            r"table 'task': the field 'name' is missing",
        ),
        ("about.json", "{", r"about\.json: not valid JSON"),
        ("about.json", "{}", r"about\.json: the field 'task' is missing"),
        ("about.json", '{"task": "a", "metric": 3}', r"the field 'metric' must be a string, got 3"),
        ("about.json", '{"task": "a", "metric": "b"}', r"'higher_is_better' is missing"),
    ],
)
def test_a_broken_file_of_an_unfinished_run_is_named(make_run, file, text, sentence):
    folder = make_run(status="unfinished")
    (folder / file).write_text(text)
    with pytest.raises(ReportError, match=sentence):
        load_run(folder)


def test_thinned_curves_keep_the_end_and_the_mean(make_run):
    run = load_run(make_run(value=0.9))
    metric, loss = metric_curve(run, limit=4), loss_curve(run, limit=10)
    assert len(metric.y) <= 4
    assert metric.y[-1] == pytest.approx(0.9)
    assert len(loss.y) == 10
    losses = [line.train_loss for line in run.curve if line.train_loss is not None]
    assert sum(loss.y) / 10 == pytest.approx(sum(losses) / 40)
    assert loss.round[-1] == metric.round[-1] == 2400


def test_the_mean_of_curves_is_where_all_were_evaluated(make_run):
    folders = [make_run(f"seed{seed}", seed=seed, value=0.8 + 0.1 * seed) for seed in (0, 1)]
    log = folders[1] / "metrics.jsonl"
    log.write_text("\n".join(log.read_text().splitlines()[4:]) + "\n")
    first, second = map(load_run, folders)
    curve = mean_curve([first, second], "wire")
    assert curve.round == metric_curve(second).round != metric_curve(first).round
    assert (curve.y[-1], curve.low[-1], curve.high[-1]) == pytest.approx((0.85, 0.8, 0.9))
    assert curve.bytes[-1] == first.traffic["wire"].bytes_sent
    old = load_run(make_run("old", wire=None))
    assert set(mean_curve([first, old], "wire").bytes) == {None}
