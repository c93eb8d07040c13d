"""Each sweep under experiments/ is the one whose results are published: run again, it would make
the same runs, setting by setting. And today's program still takes the settings of each of them.
"""

import json
import re
from pathlib import Path

import pytest

from fetchsgd.report.rows import read_rows
from fetchsgd.report.runs import find_runs
from fetchsgd.report.settings import compared_settings, method_of
from fetchsgd.runs.settings import merge
from fetchsgd.simulation.sweep import check_run, read_sweep
from fetchsgd.tasks.download import data_folder

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("experiments/*/*.toml"))
# What a task reads, below the data folder, without which a sweep cannot even be planned. Digits are
# part of scikit-learn.
READS = {
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
    "femnist": "femnist",
    "shakespeare": "shakespeare",
}
# No results, as the pages say.
NOT_MEASURED = {"femnist-liars-resnet", "personachat-paper", "shakespeare-diloco-further"}
# Settings that older runs do not have, with what was done then.
WITHOUT = {
    "method.revisit": 1.0, "method.revisit_rounds": 100, "attack.after": 0, "attack.apart": 0.0,
}  # fmt: skip


def skip_without_data(task):
    if task == "personachat":
        pytest.skip("PersonaChat needs pretrained models as well")
    if task in READS and not (data_folder() / READS[task]).exists():
        pytest.skip(f"FETCHSGD_DATA has no {READS[task]}")


def results_of(file):
    """The name of the results that a sweep file says it makes."""
    [command] = re.findall(r"^#.*fetchsgd sweep (\S+) --out runs/(\S+)", file.read_text(), re.M)
    assert command[0] == str(file.relative_to(ROOT))
    return command[1]


def signature(method, seed, settings, dims):
    """What of a run decides its result, in one spelling."""
    found = {**settings, **{key: settings.get(key, value) for key, value in WITHOUT.items()}}
    decay = "train.weight_decay_by"
    if not found["train.weight_decay"]:
        found.pop(decay, None)
    elif found.get(decay) == "auto":
        rounded = "upload.density" in found or "upload.quantiser" in found
        found[decay] = "server" if rounded else "clients"
    # Before it had a name, training without k was to send all, and to clear nothing.
    if found.get("method.k") in dims and not found["method.mask_momentum"]:
        found |= {"method.k": 0, "method.mask_momentum": True}
    return json.dumps([method, seed, found], sort_keys=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_sweep_makes_the_runs_whose_results_are_published(file):
    name = results_of(file)
    published = ROOT / f"results/{name}.jsonl"
    if name in NOT_MEASURED:
        assert not published.exists()
        return
    runs = find_runs([published])
    skip_without_data(file.parent.name)
    dims = {run.record["dim"] for run in runs}
    measured = {signature(run.method, run.seed, run.settings, dims): run.name for run in runs}
    assert len(measured) == len(runs)
    planned = {}
    for run in read_sweep(file):
        method = method_of(run.settings["method"]["name"], run.settings)
        settings = compared_settings(run.settings)
        planned[signature(method, run.settings["train"]["seed"], settings, dims)] = run.name
    assert sorted(planned[key] for key in planned.keys() - measured.keys()) == []
    assert sorted(measured[key] for key in measured.keys() - planned.keys()) == []


@pytest.mark.parametrize("file", sorted(ROOT.glob("results/*.jsonl")), ids=lambda file: file.stem)
def test_each_published_row_can_be_run_again(file):
    skip_without_data(file.stem.split("-")[0])
    made = {}
    for row in read_rows(file):
        planned = check_run(row.run.name, merge(row.settings, {"train": {"device": "cpu"}}), made)
        assert planned.settings["train"]["seed"] == row.run.seed


def test_no_result_is_of_a_sweep_that_is_gone():
    made = {results_of(file) for file in FILES} - NOT_MEASURED
    found = {path.stem for path in ROOT.glob("results/*.jsonl")}
    # Single runs, whose commands are on the page of the theory.
    assert found - made == {"digits-diagnosed"}
    assert made - found == set()
