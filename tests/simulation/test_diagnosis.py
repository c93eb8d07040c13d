"""Runs with diagnosis: the same training, what they record, and resuming."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.diagnose import QUANTITIES
from fetchsgd.errors import UserError
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run


def make(method="fetchsgd", *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


ON = ("diagnose=true", "diagnose_every=2", "diagnose_window=2", "epochs=4")


PAPER = "hash=fixed"
SUMS = {"sliding_share", "estimation_error"}
PREDICTED = {"decoding_error_predicted", "rounding_share_predicted"}
ROUNDING = {"rounding_share", "rounding_share_predicted"}
TRUTH = {"decoding_error", "decoded_along", *PREDICTED, *ROUNDING}
NOISE = {*TRUTH, "decoded_length", "horizon"}


@pytest.mark.parametrize(
    ("method", "sets", "exact", "absent"),
    [
        ("fetchsgd", (), True, SUMS | ROUNDING),
        ("fetchsgd", ("local.epochs=2", "batch_size=2"), True, SUMS | ROUNDING),
        ("fetchsgd", ("clip=1.0", "decode=unbiased"), True, SUMS | ROUNDING | {"horizon"}),
        ("fetchsgd", ("rows=3",), True, SUMS | PREDICTED | ROUNDING | {"horizon"}),
        ("fetchsgd", ("bits=4", "grid=steps"), True, SUMS | PREDICTED),
        ("fetchsgd", ("quantiser=step", "upload.tau=1"), True, SUMS),
        ("fetchsgd", ("local.epochs=1",), False, SUMS | TRUTH),
        ("fetchsgd", (PAPER,), True, NOISE),
        ("fetchsgd", (PAPER, "local.epochs=2", "batch_size=2"), True, NOISE),
        ("fetchsgd", (PAPER, "clip=1.0"), True, NOISE),
        ("fetchsgd", (PAPER, "bits=4", "grid=steps"), False, NOISE),
        ("fetchsgd", (PAPER, "local.epochs=1"), False, NOISE),
        (
            "fetchsgd",
            (PAPER, "error=window", "window=3", "method.momentum=0.0"),
            True,
            NOISE | {"heaviest_share", "contraction", "error_left"},
        ),
        ("true_topk", (), False, NOISE | {"estimation_error"}),
        ("true_topk", ("bits=4", "grid=float16"), False, NOISE | {"estimation_error"}),
    ],
    ids=lambda given: str(sorted(given) if isinstance(given, set) else given),
)
def test_a_run_with_diagnosis_trains_to_the_same_bits(method, sets, exact, absent, tmp_path):
    run = make(method, *ON, *sets)
    assert (run.diagnosis.exact or run.diagnosis.sees_truth) == exact
    run.execute(tmp_path / "on")
    make(method, "epochs=4", *sets).execute(tmp_path / "off")
    with_it, without = (load_file(tmp_path / name / FILE) for name in ("on", "off"))
    for name, tensor in without.items():
        assert torch.equal(with_it[name], tensor)
    assert len(lines(tmp_path / "on")) == 4
    for line in lines(tmp_path / "on"):
        keys = {key.removeprefix("diagnose_") for key in line if key.startswith("diagnose_")}
        assert keys == {*QUANTITIES} - absent
        assert all(line[f"diagnose_{key}"] >= 0 for key in keys - {"decoded_along"})
    for line in lines(tmp_path / "off"):
        assert not any(key.startswith("diagnose") for key in line)


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("method", "form", "count"),
    [("fetchsgd", (), 9), ("fetchsgd", (PAPER,), 6), ("true_topk", (), 5)],
)
def test_a_resumed_run_measures_the_same(method, form, count, tmp_path):
    sets = (
        *ON,
        *form,
        "diagnose_every=4",
        "diagnose_window=4",
        "checkpoint_every=5",
        "eval_every=1.34",
    )
    make(method, *sets).execute(tmp_path / "whole")

    def stop(progress):
        if progress.round == 6:
            raise StopError

    with pytest.raises(StopError):
        make(method, *sets).execute(tmp_path / "cut", watch=stop)
    make(method, *sets).execute(tmp_path / "cut", resume=True)
    whole, cut = lines(tmp_path / "whole"), lines(tmp_path / "cut")
    assert [line["round"] for line in cut] == [4, 8, 12]
    for one, other in zip(whole, cut, strict=True):
        own = {key: value for key, value in one.items() if key.startswith("diagnose_")}
        assert len(own) == count
        assert own == {key: value for key, value in other.items() if key.startswith("diagnose_")}


def test_tensorboard_has_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make("fetchsgd", *ON, "quantiser=step", "upload.tau=1").execute(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    for name in QUANTITIES:
        if name in SUMS:
            continue
        written = {event.step: event.value for event in events.Scalars(f"diagnose_{name}")}
        expected = {line["round"]: line[f"diagnose_{name}"] for line in lines(tmp_path / "run")}
        assert written == pytest.approx(expected)
        assert len(written) == 4


@pytest.mark.parametrize(
    ("method", "sets", "sentence"),
    [
        ("fedavg", ("diagnose=true",), "train.diagnose looks at the server's error.*'fedavg'"),
        ("local_topk", ("diagnose=true",), "only fetchsgd and true_topk have, got 'local_topk'"),
        ("fetchsgd", ("diagnose_every=0",), "train.diagnose_every must be at least 1, got 0"),
        ("fetchsgd", ("diagnose_window=0",), "train.diagnose_window must be at least 1, got 0"),
        ("fetchsgd", ("diagnose=1",), "train.diagnose must be true or false, got 1"),
    ],
)
def test_impossible_settings_get_a_sentence(method, sets, sentence):
    with pytest.raises(UserError, match=sentence):
        make(method, *sets)
