"""The mean of the weights of the last rounds: what it is, and that a run evaluates and keeps it."""

import pytest
import torch

import fetchsgd as fs
from fetchsgd.runs.average import Average
from fetchsgd.runs.checkpoint import read_checkpoint
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

SETS = ("average=0.8", "checkpoint_every=2")


def make(*sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": "fetchsgd"}}, sets))


def flat(model):
    return torch.cat([weights.detach().reshape(-1) for weights in model.parameters()])


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_of_constant_weights_is_these_weights(decay, generator):
    average, weights = Average(decay), torch.randn(20, generator=generator)
    for _ in range(50):
        average.after(weights)
        assert torch.equal(average.weights, weights)


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_equals_the_weighted_mean(decay, generator):
    average, rounds = Average(decay), torch.randn(30, 20, generator=generator)
    for weights in rounds:
        average.after(weights)
    shares = decay ** torch.arange(29, -1, -1, dtype=torch.float64)
    expected = (shares[:, None] * rounds).sum(0) / shares.sum()
    torch.testing.assert_close(average.weights.double(), expected, rtol=1e-5, atol=1e-6)


def test_does_not_move_with_weights_that_are_overwritten():
    average, weights = Average(0.5), torch.ones(3)
    average.after(weights)
    weights.zero_()
    assert torch.equal(average.weights, torch.ones(3))


def test_is_evaluated_and_kept_while_training_stays_the_same(tmp_path):
    run = make(*SETS)
    ended = run.complete(tmp_path / "run")
    average = Average(0.8)
    for training, _ in run.train(run.start()):
        average.after(training.weights)
    plain = make().complete()
    assert ended.training is not None
    assert plain.training is not None
    assert torch.equal(ended.training.weights, plain.training.weights)
    assert torch.equal(ended.weights, average.weights)
    assert not torch.equal(ended.weights, plain.weights)
    assert ended.summary["test_loss"] == run.evaluate(average.weights).loss
    kept = fs.load_model(tmp_path / "run", run.config.task.model)
    assert torch.equal(flat(kept), average.weights)


@pytest.mark.parametrize("stop_at", [1, 4, 5, 8])
def test_resumed_equals_uninterrupted(stop_at, tmp_path):
    class StopError(Exception):
        pass

    def stop(seen):
        if seen.round == stop_at:
            raise StopError

    whole = make(*SETS).complete(tmp_path / "whole")
    with pytest.raises(StopError):
        make(*SETS).complete(tmp_path / "cut", watch=stop)
    cut = make(*SETS).complete(tmp_path / "cut", resume=True)
    assert torch.equal(cut.weights, whole.weights)
    assert cut.summary["test_loss"] == whole.summary["test_loss"]
    cpu = torch.device("cpu")
    saved = [read_checkpoint(tmp_path / name, cpu).tensors for name in ("cut", "whole")]
    assert torch.equal(saved[0]["average.weights"], saved[1]["average.weights"])


def test_the_model_of_a_simulation_is_the_average():
    result = fs.simulate("tinytask:tiny", "fetchsgd", average=0.8)
    assert torch.equal(flat(result.model), make(*SETS).complete().weights)
