"""The simulator as a function: the same runs as from the command line."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from tinytask import tiny

import fetchsgd as fs
from fetchsgd.methods.base import check_mean, deliver_dense, momentum_state
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

FETCHSGD = {"name": "fetchsgd", "k": 20, "cols": 40}


def weights(model):
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def without_time(line):
    return {key: value for key, value in line.items() if not key.startswith("seconds")}


def test_is_the_run_of_the_command_line(tmp_path):
    """Without a folder, with one, and as `fetchsgd train` does it: the same to the bit."""
    given = {"task": {"name": "tinytask:tiny"}, "method": FETCHSGD}
    summary = Run(resolve(given, ["seed=3", "bits=8", "grid=steps"])).execute(tmp_path / "cli")
    settings = {"seed": 3, "bits": 8, "grid": "steps"}
    here = fs.simulate("tinytask:tiny", FETCHSGD, **settings)
    there = fs.simulate("tinytask:tiny", FETCHSGD, folder=tmp_path / "python", **settings)
    assert here.value == there.value == summary["value"]
    assert here.settings == there.settings == summary["config"]
    assert here.folder is None
    assert torch.equal(weights(here.model), weights(there.model))
    assert here.wire.upload_bytes == summary["wire_upload_bytes"]
    assert here.paper.overall_compression == summary["overall_compression"]
    logged = (tmp_path / "cli/metrics.jsonl").read_text().splitlines()
    for line, own, saved in zip(logged, here.history, there.history, strict=True):
        assert without_time(json.loads(line)) == without_time(own) == without_time(saved)
    assert here.history[-1]["accuracy"] == here.value
    assert str(here).startswith(f"accuracy {here.value:.4f} after 9 rounds")


def test_leaves_nothing_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fs.simulate("tinytask:tiny", "uncompressed", epochs=0.5)
    assert list(tmp_path.iterdir()) == []


def local_task(noise=0.0):
    def made(seed, clients=12):
        return tiny(seed, clients)

    assert noise == 0.0
    return made


TASKS = {
    "a name": "tinytask:tiny",
    "a task": tiny(),
    "a function": tiny,
    "one inside a function": local_task(),
    "with options": {"name": local_task(), "clients": 12},
}


@pytest.mark.parametrize("form", TASKS)
def test_a_task_in_any_form_is_the_same_task(form, tmp_path):
    result = fs.simulate(TASKS[form], "uncompressed", epochs=1, folder=tmp_path / "run")
    assert result.value == fs.simulate("tinytask:tiny", "uncompressed", epochs=1).value
    with pytest.raises(fs.UserError, match="already holds a run; give resume=True"):
        fs.simulate(TASKS[form], "uncompressed", folder=tmp_path / "run")
    again = fs.simulate(TASKS[form], "uncompressed", epochs=1, folder=tmp_path / "run", resume=True)
    assert again.value == result.value
    assert torch.equal(weights(again.model), weights(result.model))


def test_parts_may_be_names_tables_objects_and_classes():
    @dataclass(frozen=True)
    class Sign:
        """A step of equal size for each weight."""

        dim: int
        rho: float = 0.5
        notes = ()

        @property
        def message(self):
            return fs.Uncompressed(self.dim).message

        def init(self, device):
            return momentum_state(self.dim, device)

        def step(self, mean, state, rate, deliver, *, check_finite=True, **_):
            check_mean(mean, self.message.shape, check_finite)
            momentum = self.rho * state["momentum"] + mean
            sent, error = deliver_dense(rate * momentum.sign(), state["error"], deliver)
            return sent, {"momentum": momentum, "error": error}

    runs = [
        fs.simulate(tiny(), method, schedule={"peak": 0.01}, upload=upload)
        for method, upload in (
            (Sign, fs.Bits(8)),
            (Sign(75), {"quantiser": "bits", "bits": 8}),
            ({"name": Sign, "rho": 0.5}, {"quantiser": fs.Bits(8)}),
        )
    ]
    assert len({run.value for run in runs}) == 1
    assert runs[0].settings["method"] == {"name": "memory:Sign", "rho": 0.5}
    assert runs[0].settings["upload"]["bits"] == 8
    assert runs[0].summary["train_loss"] < math.log(3)


def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path):
    def stop(seen):
        if seen.round == 5:
            raise KeyboardInterrupt

    settings = {"checkpoint_every": 2, "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.simulate("tinytask:tiny", FETCHSGD, progress=stop, **settings)
    assert "resume=True) goes on from the last checkpoint" in stopped.value.__notes__[0]
    seen = []
    result = fs.simulate(
        "tinytask:tiny", FETCHSGD, resume=True, progress=lambda s: seen.append(s.round), **settings
    )
    assert seen == [5, 6, 7, 8, 9]
    whole = fs.simulate("tinytask:tiny", FETCHSGD)
    assert torch.equal(weights(result.model), weights(whole.model))
    assert [without_time(line) for line in result.history] == [
        without_time(line) for line in whole.history
    ]


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_run_that_diverges_tells_what_was_measured(with_folder, tmp_path):
    folder = tmp_path / "run" if with_folder else None
    with pytest.raises(fs.DivergedError) as caught:
        fs.simulate("tinytask:tiny", "uncompressed", peak=1e9, folder=folder)
    result = caught.value.result
    assert isinstance(result, fs.Result)
    assert (result.value, result.model) == (None, None)
    assert result.rounds < 9


def test_a_bar_and_a_table(capsys):
    result = fs.simulate("tinytask:tiny", "uncompressed", progress=True)
    assert capsys.readouterr().err.endswith(f"9/9  loss {result_loss(result)}\n")
    pandas = pytest.importorskip("pandas")
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["round"]) == [3, 6, 9]


def result_loss(result):
    """Of the last round and the metric of the evaluation before it: as the bar shows them."""
    seen = []
    fs.simulate("tinytask:tiny", "uncompressed", progress=seen.append)
    return f"{seen[-1].loss:.4f}  {seen[-1].metric:.4f}" if result.value else ""


def test_presets_and_budgets():
    result = fs.simulate("tinytask:tiny", preset="messages", local=fs.LocalWork(clip=1.0))
    assert result.settings["local"]["clip"] == 1.0
    assert result.settings["method"]["name"] == "uncompressed"
    assert result.settings["upload"]["quantiser"] == "shared_step"
    result = fs.simulate("digits", "uncompressed", epochs=0.05, budget="20x")
    assert result.settings["upload"]["quantiser"] == "step"
    assert (result.rounds, result.wire.upload_bytes / 50 * 20 <= 4 * 85066) == (1, True)


MISTAKES = {
    "a setting": ({"bitz": 8}, "there is no setting 'bitz'; did you mean 'bits'"),
    "a range": ({"epochs": -1}, "train.epochs must be above 0"),
    "a type": ({"bits": "few"}, "upload.bits must be one of"),
    "a section": ({"schedule": 0.1}, "schedule must be a dictionary"),
    "a task": ({"task": 3}, "task must be the name of a task"),
    "a method": ({"method": 3}, "method must be a name, a dictionary"),
    "a size": ({"method": fs.Uncompressed(4)}, "the method is for 4 weights, but the task's model"),
    "both": ({"preset": "paper", "method": "fedavg"}, "preset chooses the method"),
    "which run": ({"resume": True}, "resume=True needs folder"),
}


@pytest.mark.parametrize(("wrong", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_the_sentence_of_the_command_line(wrong, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        fs.simulate(**({"task": "tinytask:tiny"} | wrong))
