"""`--budget` in whole runs: what clients send is within it, whatever the server may see."""

from dataclasses import replace

import pytest
from tinytask import tiny

import fetchsgd as fs
from fetchsgd.simulation.prepare import prepare

WEIGHTS, CLIENTS = 85_066, 50
SUMS = {"upload.sum": "modular"}
SECURE = {**SUMS, "upload.secure": True}
GROUPS = {**SECURE, "merge.name": "median", "merge.groups": 8}
LOCAL = {"local.epochs": 1, "local.batch_size": 1}

# Preset, method, settings, budget, and how much of it must be used.
RUNS = {
    "no method": (None, None, {}, "100x", 0.9),
    "bytes": (None, None, {}, "3.4kB", 0.9),
    "sums, no method": (None, None, SUMS, "40x", 0.9),
    "messages": ("messages", None, {}, "400x", 0.9),
    "messages, top-k": ("messages", None, {"method.name": "true_topk"}, "250kB", 0.2),
    "own density": ("messages", None, {"density": 0.02}, "200x", 0.2),
    "sums": ("sums", None, {}, "20x", 0.99),
    "sums of 6 bits": ("sums", None, {**SUMS, "upload.sum_bits": 6}, "40x", 0.9),
    "secure sums": ("sums", None, SECURE, "20kB", 0.9),
    "secure sums of groups": ("sums", None, GROUPS, "20x", 0.9),
    "own columns": ("sums", None, {**SECURE, "cols": 4000}, "10kB", 0.8),
    "sums of gradients": (None, "uncompressed", SECURE, "3x", 0.8),
    "the paper's": ("paper", None, {}, "20x", 0.99),
    "a sketch": (None, "fetchsgd", {"rows": 3}, "30x", 0.99),
    "a sketch of few levels": (None, "fetchsgd", {"quantiser": "step"}, "100x", 0.9),
    "privacy": (None, None, {"privacy.mode": "central", "privacy.noise": 1.0}, "20x", 0.99),
    "workers": ("diloco", None, {}, "100x", 0.5),
    "fedavg": (None, "fedavg", LOCAL, "50x", 0.9),
    "local top-k": (None, "local_topk", {}, "50x", 0.5),
    "local top-k in 32 bits": (None, "local_topk", {"bits": 32}, "50x", 0.9),
    "chunks": (None, "sparse_loco", LOCAL, "50x", 0.8),
}


@pytest.mark.parametrize(("preset", "method", "sets", "budget", "used"), RUNS.values(), ids=RUNS)
def test_what_clients_send_is_within_the_budget(preset, method, sets, budget, used):
    found = fs.simulate("digits", method, preset=preset, budget=budget, epochs=0.08, **sets)
    assert found.rounds == 1
    bytes = 4 * WEIGHTS / float(budget[:-1]) if budget[-1] == "x" else 1000 * float(budget[:-2])
    assert used * bytes <= found.wire.upload_bytes / CLIENTS <= bytes
    for name, value in sets.items():
        section, _, key = name.rpartition(".")
        homes = [section] if section else ["method", "upload"]
        assert value in [found.settings[home].get(key) for home in homes]


def prepared(*sets, budget="20x", preset=None, **given):
    return prepare({"task": {"name": "digits"}, **given}, sets, preset=preset, budget=budget)


def test_without_a_method_the_server_sees_each_message():
    """Unless something speaks for a method, or against rounding; and the note says so."""
    [note, *_] = prepared().notes
    assert "--preset messages" in note
    assert "add --preset sums" in note
    for sets in (["k=100"], ["upload.sum=modular"], ["train.diagnose=true"]):
        run, notes = (found := prepared(*sets)).run, found.notes
        assert run.config.method == "fetchsgd"
        assert "--preset" not in notes[0]
    assert "--preset" not in prepared(preset="messages").notes[0]


def test_what_is_set_stays():
    run = prepared("grid=float16", "quantiser=bits", "bits=16", budget="1x").run
    settings = run.config.settings
    assert settings["method"]["name"] == "uncompressed"
    assert settings["download"]["grid"] == "float16"
    assert settings["upload"]["bits"] == 16
    assert "within it as they are set" in prepared("bits=16", budget="1x").notes[0]


def test_a_task_without_a_size_of_sketches_gets_one():
    """Its preset has no columns, which a budget chooses; without one they must be given."""

    def unsized(seed: int = 0):
        return replace(tiny(seed), preset={"schedule": {"kind": "constant", "peak": 0.1}})

    method = {"name": "fetchsgd", "k": 5}
    with pytest.raises(fs.UserError, match=r"method.cols must be given"):
        fs.simulate(unsized, method)
    result = fs.simulate(unsized, method, epochs=0.1, clients_per_round=4, budget="200")
    assert result.settings["method"]["cols"] == 34


MISTAKES = {
    "columns": ({"preset": "sums"}, ["cols=20"], "--budget chooses method.cols: leave one of the"),
    "seen and summed": (
        {"preset": "messages"},
        ["upload.sum=modular"],
        "leave out upload.quantiser = 'shared_step' and its options, or, where a preset",
    ),
    "chosen and summed": (
        {"method": {"name": "local_topk"}},
        ["upload.sum=modular"],
        "those of local_topk do not: each client chooses what it sends",
    ),
    "keys and shares": (
        {"preset": "sums", "budget": "2kB"},
        ["upload.sum=modular", "upload.secure=true"],
        "a column of 8 bits with its keys and shares in each row",
    ),
    "private": (
        {"method": {"name": "uncompressed"}},
        ["privacy.mode=central", "privacy.noise=1"],
        "numbers as they are, which privacy.mode = 'central' wants, and that takes 340,328",
    ),
}


@pytest.mark.parametrize(("given", "sets", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_name_what_the_user_has_set(given, sets, sentence):
    with pytest.raises(fs.UserError) as told:
        prepared(*sets, **given)
    assert sentence in str(told.value)
