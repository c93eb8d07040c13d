"""An interrupted and resumed run records the same as an uninterrupted one."""

import json
from dataclasses import asdict

import pytest

from fetchsgd.errors import DivergedError
from fetchsgd.runs.checkpoint import CheckpointWriter
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

METHODS = ["fetchsgd", "true_topk"]
# 12 rounds, evaluated after 4, 8 and 12; some measurements lie between an evaluation and a stop.
DIAGNOSED = (
    "diagnose=true", "diagnose_every=2", "diagnose_window=2", "epochs=4", "eval_every=1.34",
)  # fmt: skip
OWN = ("name", "seconds", "phases", "config")  # of a run; "config" has how often it saves


class StopError(Exception):
    pass


def make(method, *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(recorded):
    """Without what may differ between two runs that train the same."""
    return {
        key: value
        for key, value in recorded.items()
        if key not in OWN and not key.startswith("seconds/")
    }


def execute(run, folder, resume=False, stop_at=None):
    """The result, and what a display was shown on the way."""
    seen = []

    def watch(progress):
        if progress.round == stop_at:
            raise StopError
        seen.append(timeless(asdict(progress)))

    return run.execute(folder, resume, watch), seen


@pytest.fixture(scope="module", params=METHODS)
def whole(request, tmp_path_factory):
    """A method, and its run without a stop: lines, result and what was shown."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result, seen = execute(make(request.param, *DIAGNOSED), folder)
    assert [line["round"] for line in lines(folder)] == [4, 8, 12]
    assert all("train_loss" in line and "diagnose_contraction" in line for line in lines(folder))
    return request.param, lines(folder), result, seen


def test_train_loss_is_the_mean_since_the_last_evaluation(whole):
    _, recorded, result, seen = whole
    losses = [progress["loss"] for progress in seen]
    expected = [sum(losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    assert [line["train_loss"] for line in recorded] == pytest.approx(expected)
    assert result["train_loss"] == recorded[-1]["train_loss"]


def assert_recorded_as(whole, folder, result):
    """All numbers of all lines and of the result are equal; only the seconds differ."""
    _, expected, expected_result, _ = whole
    found = lines(folder)
    assert list(map(timeless, found)) == list(map(timeless, expected))
    assert timeless(result) == timeless(expected_result)
    seconds = [line["seconds"] for line in found] + [result["seconds"]]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("every", [3, 4, 5])
@pytest.mark.parametrize("stop_at", [1, 4, 6, 8, 11, 12])
def test_stopped_by_the_watcher(whole, stop_at, every, tmp_path):
    """Before an evaluation that is due, and in other rounds."""
    sets = (*DIAGNOSED, f"checkpoint_every={every}")
    with pytest.raises(StopError):
        execute(make(whole[0], *sets), tmp_path / "run", stop_at=stop_at)
    result, seen = execute(make(whole[0], *sets), tmp_path / "run", resume=True)
    assert_recorded_as(whole, tmp_path / "run", result)
    resumed_at = (stop_at - 1) // every * every
    assert seen == whole[3][resumed_at:]


def test_stopped_again_and_again(whole, tmp_path):
    sets = (*DIAGNOSED, "checkpoint_every=1")
    for stop_at in range(1, 13):
        with pytest.raises(StopError):
            execute(make(whole[0], *sets), tmp_path / "run", stop_at > 1, stop_at)
    result, _ = execute(make(whole[0], *sets), tmp_path / "run", resume=True)
    assert_recorded_as(whole, tmp_path / "run", result)


def test_stopped_inside_an_evaluation(whole, tmp_path):
    sets = (*DIAGNOSED, "checkpoint_every=3")
    run, evaluations = make(whole[0], *sets), []
    evaluate = run.evaluate

    def interrupted(weights):
        evaluations.append(evaluate(weights))
        if len(evaluations) == 2:
            raise StopError
        return evaluations[-1]

    run.evaluate = interrupted
    with pytest.raises(StopError):
        execute(run, tmp_path / "run")
    assert [line["round"] for line in lines(tmp_path / "run")] == [4]
    result, _ = execute(make(whole[0], *sets), tmp_path / "run", resume=True)
    assert_recorded_as(whole, tmp_path / "run", result)


def test_stopped_between_a_line_and_its_checkpoint(whole, tmp_path, monkeypatch):
    """The checkpoint is older than the line, which must not be logged twice."""
    sets = (*DIAGNOSED, "checkpoint_every=4")
    save = CheckpointWriter.save

    def interrupted(self, training, *more, **options):
        if training.round == 8:
            raise StopError
        save(self, training, *more, **options)

    monkeypatch.setattr(CheckpointWriter, "save", interrupted)
    with pytest.raises(StopError):
        execute(make(whole[0], *sets), tmp_path / "run")
    monkeypatch.undo()
    assert [line["round"] for line in lines(tmp_path / "run")] == [4, 8]
    result, _ = execute(make(whole[0], *sets), tmp_path / "run", resume=True)
    assert_recorded_as(whole, tmp_path / "run", result)


def test_a_resumed_run_knows_since_when_the_loss_rises(tmp_path):
    """Stopped while it rises, before it is hopeless: the same sentence, the same result."""
    points = "points=[[0, 0.01], [4, 0.01], [4.3, 1], [5, 10], [6, 100], [7, 1e3], [9, 1e6]]"
    sets = ("epochs=10", "kind=piecewise", points, "checkpoint_every=2")

    def diverge(folder, **options):
        with pytest.raises(DivergedError) as raised:
            execute(make("uncompressed", *sets), folder, **options)
        return str(raised.value), json.loads((folder / "result.json").read_text())

    sentence, expected = diverge(tmp_path / "whole")
    since, end = expected["rising_since"], expected["rounds"]
    assert since + 3 < end  # room for a checkpoint after the rise began
    with pytest.raises(StopError):
        execute(make("uncompressed", *sets), tmp_path / "cut", stop_at=end - 1)
    again, result = diverge(tmp_path / "cut", resume=True)
    assert again == sentence
    assert timeless(result) == timeless(expected)
