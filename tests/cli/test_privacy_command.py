"""`fetchsgd privacy` as a user meets it."""

import json
import sys

import pytest

from fetchsgd.cli import main
from fetchsgd.privacy import Accountant, Gaussian, Participation

DIGITS = ["--rounds", "312", "--clients", "602", "--per-round", "50"]
LEVELS = ["--mechanism", "skellam", "--clip", 1, "--step", 0.01, "--count", 4000]


@pytest.fixture
def privacy(monkeypatch, capsys):
    """Run the command in this process: exit code, output, sentence."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fetchsgd", "privacy", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_tells_the_noise_for_an_epsilon_and_what_that_assumes(privacy):
    code, out, _ = privacy("--epsilon", 1, *DIGITS)
    assert code == 0
    noise = float(out.split()[1])
    accountant = Accountant(Gaussian(noise), Participation("poisson", 602, 50))
    assert 0.99 < accountant.epsilon(312, 1e-5) <= 1
    assert "at delta 1e-05" in out
    assert "by a coin of its own, with probability 0.08306, and nobody sees who did" in out
    assert "the server is honest" in out


def test_tells_the_epsilon_of_a_noise(privacy):
    code, out, _ = privacy("--noise", 3, *DIGITS, "--sampling", "epoch", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["epsilon"] == pytest.approx(7.809, abs=0.001)
    assert found["deviation_of_the_mean"] == 3 / 50
    assert found["epsilon_rdp"] > found["epsilon"]


def test_tells_the_noise_of_clients_in_whole_levels(privacy):
    code, out, _ = privacy("--epsilon", 8, *DIGITS, "--sampling", "epoch", *LEVELS)
    assert code == 0
    assert "a client's levels are at most 105.5 long" in out
    assert "up to 24 times, and the server sees when, so nothing is gained by sampling" in out
    assert "at least 50 honest clients are in every sum" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give --epsilon for the noise it asks for, or --noise for its epsilon"),
        (["--epsilon", 1, "--noise", 1], "give --epsilon for the noise it asks for, or"),
        (["--epsilon", -1], "--epsilon must be a number above 0, got -1"),
        (["--noise", 1, "--delta", 1], "--delta must be between 0 and 1"),
        (["--noise", 1, "--sampling", "lots"], "--sampling must be one of poisson, epoch, uniform"),
        (["--noise", 1, "--per-round", 700], "must be from 1 to 602, got 700"),
        (["--noise", 1, "--step", 0.1], "belong to noise in whole levels, which needs both"),
        (["--noise", 1, "--mechanism", "skellam"], "which needs both"),
    ],
)
def test_mistakes_get_a_sentence(privacy, words, sentence):
    code, _, said = privacy(*DIGITS, *words)
    assert code == 2
    assert sentence in said
