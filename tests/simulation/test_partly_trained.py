"""Whole runs of a model of which one layer is frozen and one is not used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from partlytrained import TRAINED, UNUSED
from safetensors.torch import load_file

from fetchsgd.errors import UserError
from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.simulation.sweep import plan

PARTLY = {"task": {"name": "partlytrained:task"}}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("uncompressed", ()),
        ("uncompressed", ("local.clip=0.5",)),
        ("true_topk", ("k=39",)),
        ("local_topk", ("k=39",)),
        ("fedavg", ("local.epochs=2", "local.batch_size=2")),
    ],
    ids=str,
)
def test_only_what_is_trainable_is_trained(method, sets, weight_decay, tmp_path):
    run = Run(resolve({**PARTLY, "method": {"name": method}}, [*sets, f"{weight_decay=}"]))
    frozen = [p.clone() for p in run.setup.model.module.frozen.parameters()]
    result = run.execute(tmp_path / "run")
    assert result["dim"] == UNUSED + TRAINED
    weights = load_file(tmp_path / "run" / checkpoints.FILE)["weights"]
    before, after = (vector.split([UNUSED, TRAINED]) for vector in (run.setup.origin, weights))
    assert (before[1] != after[1]).all()
    if weight_decay:
        assert (after[0].abs() < before[0].abs()).all()
    else:
        assert torch.equal(before[0], after[0])
    for parameter, old in zip(run.setup.model.module.frozen.parameters(), frozen, strict=True):
        assert torch.equal(parameter, old)
        assert not parameter.requires_grad


def test_sweeps_and_budgets_count_what_is_trainable(tmp_path):
    with pytest.raises(UserError, match=r"method.k must be from 0 to 39, got 40"):
        plan({**PARTLY, "sweep": [{"method.k": [40]}]}, "the test")
    command = [sys.executable, "-m", "fetchsgd", "train", "partlytrained:task", "--budget", "2x"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    # Two bytes for each of 39 weights, which is too little for levels of all of them.
    assert "--budget of 78 bytes cannot be met" in ended.stderr


def test_a_model_with_running_statistics_is_refused_in_runs_and_sweeps():
    given = {"task": {"name": "partlytrained:normed"}}
    sentence = r"module '1' \(BatchNorm1d\) has running statistics"
    with pytest.raises(UserError, match=sentence):
        Run(resolve(given))
    with pytest.raises(UserError, match=sentence):
        plan({**given, "sweep": [{"method.k": [5]}]}, "the test")
