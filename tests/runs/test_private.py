"""Runs with differential privacy: what they promise, write down, refuse, and go on with."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.clients.trainer import Trainer
from fetchsgd.errors import UserError
from fetchsgd.flower.settings import read_settings
from fetchsgd.privacy.accounting import gaussian_delta, gaussian_epsilon
from fetchsgd.privacy.source import Source
from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.private import KEY_FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

CENTRAL = ("privacy.mode=central", "privacy.noise=1")
LINEAR = ["fetchsgd", "true_topk", "fedavg", "uncompressed"]


def make(method="fetchsgd", *sets):
    settings = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
    return Run(resolve(settings, (*CENTRAL, *sets)))


def weights(folder):
    return load_file(folder / checkpoints.FILE)["weights"]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", LINEAR)
def test_a_run_writes_down_what_it_has_spent(method, tmp_path):
    result = make(method).execute(tmp_path / "run")
    # Three epochs, and each client took part once in each.
    assert result["epsilon"] == pytest.approx(gaussian_epsilon(1 / math.sqrt(3), 1e-5))
    assert result["delta"] == 1e-5
    assert result["privacy"]["noise"] == 1
    spent = [line["epsilon"] for line in lines(tmp_path / "run")]
    assert spent == sorted(spent)
    assert spent[-1] == result["epsilon"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result


def test_hash_of_the_paper_and_coins_and_a_moving_clip(tmp_path):
    sets = ("hash=fixed", "sampling=poisson", "clients_per_round=2", "quantile=0.5")
    sets += ("accountant=rdp", "random=seed")
    result = make("fetchsgd", *sets).execute(tmp_path / "run")
    assert result["privacy"]["clip"] != 1
    assert result["privacy"]["noise_of_sum"] > 1
    assert result["status"] == "finished"


def test_noise_is_secret_and_equal_seeds_differ_unless_asked_for(tmp_path):
    for name, sets in (("a", ()), ("b", ()), ("c", ("random=seed",)), ("d", ("random=seed",))):
        make("uncompressed", *sets).execute(tmp_path / name)
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert torch.equal(weights(tmp_path / "c"), weights(tmp_path / "d"))


class StopError(Exception):
    pass


def stop_at(round):
    def stop(seen):
        if seen.round == round:
            raise StopError

    return stop


@pytest.mark.parametrize("sets", [(), ("random=seed",), ("quantile=0.7", "sampling=poisson")])
def test_a_round_that_is_done_again_has_the_noise_it_had(sets, tmp_path):
    """Another noise on the same sum would spend privacy twice. The key goes with the last round."""
    folder, sets = tmp_path / "cut", (*sets, "checkpoint_every=2")
    with pytest.raises(StopError):
        make("fetchsgd", *sets).execute(folder, watch=stop_at(5))
    is_secret = "random=seed" not in sets
    key = folder / KEY_FILE
    assert key.exists() == is_secret
    if is_secret:
        assert key.stat().st_mode & 0o777 == 0o600
        (tmp_path / "whole").mkdir()
        (tmp_path / "whole" / KEY_FILE).write_bytes(key.read_bytes())
    whole = make("fetchsgd", *sets).execute(tmp_path / "whole")
    result = make("fetchsgd", *sets).execute(folder, resume=True)
    assert torch.equal(weights(folder), weights(tmp_path / "whole"))
    for name in ("value", "epsilon", "privacy"):
        assert result[name] == whole[name]
    assert not key.exists()
    assert not (tmp_path / "whole" / KEY_FILE).exists()


def test_a_run_stops_before_it_goes_beyond_its_budget(tmp_path):
    result = make("fetchsgd", "epsilon=7").execute(tmp_path / "run")
    assert result["rounds"] == 6  # a third epoch would cost 8.4
    assert result["epsilon"] <= 7
    assert (
        "stopped after 6 rounds: one more would have spent an epsilon of 8.385"
        in (result["stopped"])
    )
    assert result["value"] is not None
    assert torch.isfinite(weights(tmp_path / "run")).all()
    assert lines(tmp_path / "run")[-1]["round"] == 6
    again = make("fetchsgd", "epsilon=7").execute(tmp_path / "run", resume=True)
    assert again == result
    with pytest.raises(UserError, match="not enough for one round: it costs an epsilon of 4.38"):
        make("fetchsgd", "epsilon=3")


def test_an_epsilon_for_the_whole_run_decides_on_the_noise(tmp_path):
    result = make("fetchsgd", "privacy.noise=0", "epsilon=5").execute(tmp_path / "run")
    assert result["rounds"] == 9
    assert 4.99 < result["epsilon"] <= 5
    assert result["privacy"]["noise"] > 1


def test_a_run_cannot_go_on_with_another_noise():
    one, other = make("uncompressed").private, make("uncompressed", "privacy.noise=2").private
    with pytest.raises(UserError, match="has had a noise of 1 so far"):
        other.restore(one.tensors())


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (("privacy.mode=distributed",), "privacy.mechanism must be 'discrete_gaussian'"),
        (("privacy.mode=distributed", "mechanism=skellam"), "needs sums of whole levels"),
        (("mechanism=skellam",), "privacy.mechanism must be 'gaussian'"),
        (("averaging=examples",), "more weight than the clip allows"),
        (("bits=8",), "longer than the clip"),
        (("quantiser=shared_step",), "learned from messages tells of them"),
        (("diagnose=true",), "which no noise covers"),
        (("method.name=local_topk",), "messages that add up, and those of local_topk do not"),
        (("privacy.noise=0",), "needs privacy.epsilon, or privacy.noise"),
        (("privacy.clip=0",), "privacy.clip must be above 0, got 0"),
        (("quantile=1",), "privacy.quantile must be at least 0 and below 1"),
        (("delta=0",), "privacy.delta must be between 0 and 1"),
        (("quantile=0.5", "clip_noise=0.1"), "must be above 0.5, half the noise multiplier"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(sets, sentence):
    with pytest.raises(UserError, match=sentence):
        make("fetchsgd", *sets)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("privacy.mode=central privacy.noise=1", "take .distributed., noise by the clients"),
        ("train.sampling=poisson", "spares take the place"),
    ],
)
def test_a_federation_promises_nothing_it_does_not_keep(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        read_settings({"task.name": "tinytask:tiny", "settings": settings})


def without(monkeypatch, place):
    """The client at this place of every cohort sends nothing but zeros."""
    real = Trainer.client_vectors

    def vectors(*given):
        found, losses = real(*given)
        found = found.clone()
        found[place] = 0
        return found, losses

    monkeypatch.setattr(Trainer, "client_vectors", vectors)


def mean_without_noise(method, *sets):
    run = make(method, "privacy.clip=0.05", *sets)
    training = run.start()
    cohort = run.setup.sampler.cohort(0)
    return run, run._merged(training, cohort, run.setup.rate(0)), training


@pytest.mark.parametrize("method", LINEAR)
def test_one_client_moves_the_mean_by_no_more_than_its_share_of_the_clip(method, monkeypatch):
    _, merged, _ = mean_without_noise(method)
    without(monkeypatch, 2)
    _, neighbour, _ = mean_without_noise(method)
    moved = (merged.mean - neighbour.mean).double().norm()
    assert moved == pytest.approx(0.05 / 4, rel=1e-4)  # at the bound: its gradient was longer


def test_all_that_follows_the_noisy_mean_follows_from_it(monkeypatch):
    """Two neighbouring runs, given the same noisy means, have the same weights and states."""
    means = iter(
        2 * [torch.randn(1, 40, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    )

    def trained():
        run = make("fetchsgd")
        noisy = run.private.noisy
        run.private.noisy = lambda *given: replace(noisy(*given), mean=next(means))
        *_, (training, _) = run.train(run.start(), 4)
        return training

    one = trained()
    without(monkeypatch, 1)
    other = trained()
    assert torch.equal(one.weights, other.weights)
    assert one.state.keys() == other.state.keys()
    for name in one.state:
        assert torch.equal(one.state[name], other.state[name])


REPEATS, FAILS = 2000, 1e-6


def guesses(noise, monkeypatch):
    """How often a mean lies far along the client's own message, with the client and without it.

    Whoever guesses that the client took part where it does has the best test there is. The same
    cohort many times, with fresh noise.
    """
    run, merged, _ = mean_without_noise("fetchsgd", f"privacy.noise={noise}")
    with monkeypatch.context() as patch:
        without(patch, 2)
        _, neighbour, _ = mean_without_noise("fetchsgd")
    run.private.source = Source.from_seed(0)
    own = merged.mean - neighbour.mean
    scale = own.square().sum()

    def places(of, first):
        found = []
        for repeat in range(first, first + REPEATS):
            noisy = run.private.noisy(of, repeat)
            found.append(((noisy.mean - neighbour.mean) * own).sum() / scale)
        return torch.stack(found)

    return places(merged, 0), places(neighbour, REPEATS)


def beyond(places, threshold):
    return float((places > threshold).double().mean())


def broken(promised, inside, outside):
    """Whether some guess is right more often than epsilon allows, by far more than chance."""
    slack = math.sqrt(math.log(2 / FAILS) / (2 * REPEATS))
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        most = gaussian_delta(promised, epsilon)
        for threshold in torch.linspace(-2, 3, 21).tolist():
            found = beyond(inside, threshold) - math.exp(epsilon) * beyond(outside, threshold)
            if found > most + (1 + math.exp(epsilon)) * slack:
                return True
    return False


def test_membership_is_hidden_as_promised_and_no_more(monkeypatch):
    """A correct program fails once in a thousand seeds, as there are 84 guesses, each once in 1e6.

    The key of the noise is fixed. With half the noise the same test fails, so it can.
    """
    inside, outside = guesses(1.0, monkeypatch)
    assert not broken(1.0, inside, outside)
    # The noise is as much as accounted, and not more: the best guess is right as often as theory
    # says, P(N > -1/2) - P(N > 1/2) = 0.383.
    gained = beyond(inside, 0.5) - beyond(outside, 0.5)
    assert gained == pytest.approx(gaussian_delta(1.0, 0.0), abs=0.06)
    assert broken(1.0, *guesses(0.5, monkeypatch))
