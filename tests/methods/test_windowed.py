"""FetchSGD with a sliding window, and recovery by threshold: steps, options, runs that resume."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fetchsgd.errors import UserError
from fetchsgd.methods import FetchSGD
from fetchsgd.methods.windowed import WITH_MOMENTUM
from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.settings import resolve
from fetchsgd.server.grids import GRIDS, Float32Grid
from fetchsgd.simulation import Run

CPU = torch.device("cpu")
TESTS = str(Path(__file__).parents[1])
FORMS = ["overlapping", "histogram"]
both_forms = pytest.mark.parametrize("form", FORMS)


def gradients(dim=200, rounds=12, seed=0):
    return torch.randn(rounds, dim, generator=torch.Generator().manual_seed(seed))


def windowed(form, window, **options):
    options = {"k": 15, "cols": 60, "rows": 3, "momentum": 0.0} | options
    return FetchSGD(200, error="window", window=window, window_form=form, hash="fixed", **options)


def train(method, vectors, rate=0.1, grid=None):
    """Updates of each round, weights and state at the end; weights start at zero."""
    grid = grid or Float32Grid((method.dim,), torch.zeros(method.dim))
    position, state, updates = grid.start(torch.zeros(method.dim)), method.init(CPU), []
    for vector in vectors:
        sent, state = method.step(
            method.message.compress(vector), state, rate, deliver=grid.deliver(position)
        )
        position = grid.move(position, sent)
        updates.append(sent.update)
    return updates, position.weights, state


def test_a_window_of_one_round_keeps_no_error():
    """The warm-up of the proof: w - Top-k(U(S(eta g)))."""
    for form in FORMS:
        method = windowed(form, 1)
        updates, _, _ = train(method, gradients())
        for update, vector in zip(updates, gradients(), strict=True):
            alone = method.sketch.top_k(0.1 * method.message.compress(vector), 15)
            assert torch.equal(update.indices, alone.indices)
            assert torch.equal(update.values, alone.values)


@both_forms
@pytest.mark.parametrize("reset", ["zero", "subtract"])
def test_all_of_k_and_a_wide_table_is_sgd(form, reset):
    method = windowed(form, 5, k=200, cols=4000, rows=25, error_reset=reset)
    _, weights, state = train(method, gradients())
    torch.testing.assert_close(weights, -0.1 * gradients().sum(dim=0), rtol=1e-3, atol=1e-3)
    assert all(method.sketch.l2(table) < 0.05 for table in state["error"])


@both_forms
@pytest.mark.parametrize("position", ["inside", "outside"])
@pytest.mark.parametrize("grid", ["float32", "float16", "steps"])
def test_given_is_sent_plus_kept(form, position, grid):
    """While nothing has left the window, its oldest sketch is that of all that was not sent."""
    options = {"step": 0.05} if grid == "steps" else {}
    grid = GRIDS[grid]((200,), torch.zeros(200), **options)
    method = windowed(form, 12, error_reset="subtract", lr_position=position)
    _, weights, state = train(method, gradients(), grid=grid)
    scale = 0.1 if position == "inside" else 1.0
    expected = scale * method.sketch.sketch(gradients().sum(dim=0) + 10 * weights)
    torch.testing.assert_close(
        state["error"][state["ages"].argmax()], expected, rtol=1e-3, atol=1e-4 * scale / 0.1
    )


@both_forms
def test_zeroing_clears_what_was_sent_from_all_sketches(form):
    method = windowed(form, 4, momentum=0.9, rows=1)
    updates, _, state = train(method, gradients())
    touched = method.sketch.sketch(updates[-1]) != 0
    assert touched.any()
    assert (state["error"][:, touched] == 0).all()
    assert (state["momentum"][touched] == 0).all()
    assert (state["error"][state["ages"] > 0][:, ~touched] != 0).any(dim=1).all()
    assert state["error"].shape == (method.windows.slots, 1, 60)


@both_forms
def test_rounding_leaves_its_rest_in_all_sketches(form):
    """With steps so coarse that a fifth of what is found is rounded off; `error_reset = "zero"`."""
    grid = GRIDS["steps"]((200,), torch.zeros(200), step=0.3)
    method = windowed(form, 4)
    (*_, update), _, state = train(method, gradients(), grid=grid)
    touched = method.sketch.sketch(update) != 0
    held = state["error"][state["ages"] > 0][:, touched]
    assert (held == held[0]).all()
    assert 0 < held.abs().max() <= 0.3 * method.k
    assert (state["error"][state["ages"] == 0] == 0).all()


@pytest.mark.gpu
@both_forms
@pytest.mark.parametrize("reset", ["zero", "subtract"])
def test_a_gpu_does_the_same(form, reset):
    method = windowed(form, 5, error_reset=reset)
    states = {name: method.init(torch.device(name)) for name in ("cpu", "cuda")}
    for vector in gradients():
        sent = {}
        for name, state in states.items():
            sent[name], states[name] = method.step(
                method.message.compress(vector.to(name)), state, 0.1
            )
        assert torch.equal(sent["cuda"].sparse.indices.cpu(), sent["cpu"].sparse.indices)
        assert torch.equal(states["cuda"]["ages"].cpu(), states["cpu"]["ages"])
        torch.testing.assert_close(states["cuda"]["error"].cpu(), states["cpu"]["error"])


@pytest.mark.parametrize("error", [{}, {"error": "window", "window": 6}])
def test_a_threshold_sends_what_is_heavy_and_at_most_k(error):
    method = FetchSGD(
        2000,
        k=3,
        cols=500,
        rows=5,
        momentum=0.0,
        recovery="threshold",
        tau=0.3,
        hash="fixed",
        **error,
    )
    vectors = gradients(2000, 8)
    vectors[2, [7, 11]] += 40.0
    vectors[5, :5] += 60.0
    updates, weights, _ = train(method, vectors)
    assert [update.indices.tolist() for update in updates[:5]] == [[], [], [7, 11], [], []]
    assert len(updates[5]) == 3
    assert set(updates[5].indices.tolist()) < set(range(5))
    assert set(updates[6].indices.tolist()) < set(range(5))  # the other two
    assert weights[7] == pytest.approx(-4, abs=1)


WRONG = [
    ({"error": "window"}, "method.window, .* must be at least 1 with .*, got 0"),
    ({"error": "window", "window": -1}, "method.window, .* must be at least 1 with .*, got -1"),
    ({"window": 4}, "method.window has no effect unless method.error = 'window', got 4"),
    ({"window_eps": 1.0}, "method.window_eps must be above 0 and below 1, got 1.0"),
    ({"recovery": "threshold"}, "method.tau must be above 0 and at most 1 with .*, got 0.0"),
    ({"recovery": "threshold", "tau": 1.5}, "method.tau must be above 0 .*, got 1.5"),
    ({"tau": 0.1}, "method.tau has no effect unless method.recovery = 'threshold', got 0.1"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_options_get_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        FetchSGD(200, k=15, cols=60, hash="fixed", **options)
    sets = [f"method.{key}={value!r}" for key, value in options.items()]
    with pytest.raises(UserError, match=sentence):
        make(*sets)


def test_notes_tell_of_memory_and_momentum():
    small = FetchSGD(200, k=5, cols=9, momentum=0.0, error="window", window=3, hash="fixed")
    assert small.notes == []
    method = FetchSGD(10**8, k=5, cols=10**6, rows=3, error="window", window=300, hash="fixed")
    assert method.notes == [
        WITH_MOMENTUM,
        "the window keeps 300 error tables, 3.6 GB; "
        "method.window_form = 'histogram' keeps at most 12",
    ]


def make(*sets):
    method = {"name": "fetchsgd", "hash": "fixed"}
    given = {"task": {"name": "tinytask:tiny"}, "method": method}
    return Run(resolve(given, sets))


class StopError(Exception):
    pass


SETS = [
    ("error=window", "window=4"),
    ("error=window", "window=4", "window_form=histogram"),
    ("error=window", "window=20", "window_form=histogram", "rows=3", "error_reset=subtract"),
    ("error=window", "window=3", "rows=3", "error_reset=subtract", "bits=2", "grid=steps"),
    ("error=window", "window=3", "recovery=threshold", "tau=0.5", "momentum=0", "grid=float16"),
    ("recovery=threshold", "tau=0.5"),
]


@pytest.mark.parametrize("stop_at", [1, 4, 7])
@pytest.mark.parametrize("sets", SETS, ids=str)
def test_resumed_equals_uninterrupted(sets, stop_at, tmp_path):
    sets = (*sets, "checkpoint_every=2")
    whole = make(*sets).execute(tmp_path / "whole")

    def stop(seen):
        if seen.round == stop_at:
            raise StopError

    with pytest.raises(StopError):
        make(*sets).execute(tmp_path / "cut", watch=stop)
    result = make(*sets).execute(tmp_path / "cut", resume=True)
    assert result["value"] == whole["value"]
    assert result["wire_download_bytes"] == whole["wire_download_bytes"]
    assert_same_bits(tmp_path)


def assert_same_bits(folder):
    cut, whole = (load_file(folder / name / checkpoints.FILE) for name in ("cut", "whole"))
    for name in ("weights", "steps", *(name for name in whole if name.startswith("state."))):
        assert torch.equal(cut[name], whole[name]), name


KILLED_IN_ROUND_8 = """
import os, pathlib, signal, sys
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

given = {"task": {"name": "tinytask:tiny"}, "method": {"name": "fetchsgd", "hash": "fixed"}}
Run(resolve(given, sys.argv[2:])).execute(
    pathlib.Path(sys.argv[1]),
    watch=lambda seen: os.kill(os.getpid(), signal.SIGKILL) if seen.round == 8 else None,
)
"""


def test_a_killed_process_is_taken_up_by_another(tmp_path):
    """kill -9 of a real process: the checkpoint on disk is all there is to go on from."""
    sets = ["checkpoint_every=3", "error=window", "window=5", "window_form=histogram"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, TESTS])}
    command = [sys.executable, "-c", KILLED_IN_ROUND_8, str(tmp_path / "cut"), *sets]
    killed = subprocess.run(command, env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "cut" / checkpoints.FILE).exists()
    assert not (tmp_path / "cut" / "result.json").exists()
    for name in ("cut", "whole"):
        make(*sets).execute(tmp_path / name, resume=True)
    assert_same_bits(tmp_path)


def test_windows_train(tmp_path):
    for form in FORMS:
        sets = (f"window_form={form}", "error=window", "window=4", "epochs=8")
        result = make(*sets).execute(tmp_path / form)
        assert result["value"] > 0.5
        assert json.loads((tmp_path / form / "result.json").read_text()) == result


def test_checkpoints_from_before_windows_are_read(tmp_path):
    run = make()
    run.execute(tmp_path)
    path = tmp_path / checkpoints.FILE
    tensors, about = load_file(path), {"round": "9", "seconds": "1.0"}
    for since in ("ledger.merged", "recorder.losses", "recorder.trend"):
        del tensors[since]
    # The first versions with windows wrote an empty tensor where there was none.
    for more in ({}, {"state.ages": torch.zeros(0, dtype=torch.int64)}):
        save_file(tensors | more, path, about)
        downloads = run.setup.grid.downloads()
        found = checkpoints.load_checkpoint(tmp_path, run.start(), downloads, CPU)
        assert found.training.state.keys() == {"momentum", "error"}
        assert torch.equal(found.training.state["error"], tensors["state.error"])
