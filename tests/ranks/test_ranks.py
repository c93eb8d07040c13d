"""Processes that train together train what one process does. worlds.py starts them, all at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.ranks import Ranks
from fetchsgd.simulation.spread import Spread

PROGRAM = Path(__file__).with_name("worlds.py")
WAYS = [
    "one pass", "one step", "few bits", "one step for all", "sums", "weighted sums", "choosing",
    "remembering", "local batches", "private", "private sums", "shaken", "shaken one by one",
    "local steps", "one pass, in blocks", "few bits, in blocks", "local batches, in blocks",
    "local steps, in blocks", "shaken, in blocks", "shaken one by one, in blocks",
    "AdamW, fetchsgd", "AdamW, fetchsgd, one hash", "AdamW, true_topk", "AdamW, local_topk",
    "AdamW, fedavg", "AdamW, sparse_loco",
]  # fmt: skip
APART = ["one pass", "few bits", "sums"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    command = [sys.executable, str(PROGRAM), str(folder), "ways", "changing", "sums", "commands"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = "".join(file.read_text() for file in folder.glob("said-*.txt"))
    assert done.returncode == 0, f"{done.stderr}\n{said}"
    return folder


def found(folder, way):
    one = torch.load(folder / f"{way}-1-0.pt")
    return one, [torch.load(folder / f"{way}-3-{rank}.pt") for rank in range(3)]


@pytest.mark.parametrize("way", WAYS)
def test_three_processes_train_what_one_does(folder, way):
    (weights, lines), ranks = found(folder, way)
    for others, _ in ranks:
        assert torch.equal(others, ranks[0][0])
    if "sums" in way:
        assert torch.equal(ranks[0][0], weights)
    torch.testing.assert_close(ranks[0][0], weights, rtol=1e-4, atol=1e-5)
    for line, own in zip(lines, ranks[0][1], strict=True):
        assert {k: v for k, v in own.items() if k.endswith("_bytes")} == {
            k: v for k, v in line.items() if k.endswith("_bytes")
        }
        assert own == pytest.approx(line, rel=1e-4)


@pytest.mark.parametrize("way", ["one pass", "few bits", "local steps"])
def test_as_many_processes_train_the_same_again(folder, way):
    (first, lines), *_ = found(folder, way)[1]
    (again, more), *_ = found(folder, f"{way}, again")[1]
    assert torch.equal(again, first)
    assert more == lines


@pytest.mark.parametrize("way", APART)
def test_processes_on_several_machines_train_the_same(folder, way):
    (near, lines), *_ = found(folder, way)[1]
    apart = [torch.load(folder / f"{way}, apart-3-{rank}.pt") for rank in range(3)]
    assert all(torch.equal(weights, apart[0][0]) for weights, _ in apart)
    if way == "sums":
        assert torch.equal(apart[0][0], near)
    torch.testing.assert_close(apart[0][0], near, rtol=1e-4, atol=1e-5)
    for line, own in zip(lines, apart[0][1], strict=True):
        assert own == pytest.approx(line, rel=1e-4)


def test_sums_on_one_machine_are_added_in_the_order_of_the_ranks(folder):
    ranks = [torch.load(folder / f"sums-{rank}.pt") for rank in range(3)]
    parts = [own["parts"] for own in ranks]
    for own in ranks:
        assert own["near"]
        for n, part in enumerate(zip(*parts, strict=True)):
            assert torch.equal(own["sums"][n], part[0] + part[1] + part[2])
            assert torch.equal(own["most"][n], torch.stack(part).amax(0))
        floats, number = own["both"]
        assert torch.equal(floats, parts[0][0] + parts[1][0] + parts[2][0])
        assert number.item() == 3.0


def test_processes_that_cannot_meet_sum_up_all_the_same(folder):
    for rank in range(3):
        is_near, total = torch.load(folder / f"apart-{rank}.pt")
        assert not is_near
        assert total.tolist() == [3.0, 3.0, 3.0]


def test_a_process_that_ends_too_soon_is_noticed(folder):
    assert (folder / "too-soon.txt").read_text() == "another process of this run has ended"


def test_every_process_knows_what_was_measured(folder):
    for way in WAYS:
        _, ranks = found(folder, way)
        assert all(lines == ranks[0][1] for _, lines in ranks)


def test_noise_that_nobody_can_predict_is_the_same_in_all_processes(folder):
    (alone, _), ranks = found(folder, "private by a secret")
    for weights, _ in ranks:
        assert torch.equal(weights, ranks[0][0])
    assert not torch.allclose(ranks[0][0], alone, rtol=1e-2)


def test_a_run_goes_on_with_other_numbers_of_processes(folder):
    """Two begin, three go on, one ends it; clients remember, so each has its row somewhere."""
    assert (folder / "stopped-4").exists()
    assert (folder / "stopped-7").exists()
    names = ("changing", "whole")
    metrics = [(folder / name / "metrics.jsonl").read_text().splitlines() for name in names]
    assert len(metrics[0]) == len(metrics[1]) == 6
    models = [load_file(folder / name / "model.safetensors") for name in names]
    saved = [load_file(folder / name / "checkpoint.safetensors") for name in names]
    for name, part in models[1].items():
        torch.testing.assert_close(models[0][name], part, rtol=1e-4, atol=1e-5)
    for name in ("memory.error", "memory.momentum"):
        assert bool((saved[1][name] != 0).any())
        torch.testing.assert_close(saved[0][name], saved[1][name], rtol=1e-4, atol=1e-5)
    assert torch.equal(saved[0]["ledger.held"], saved[1]["ledger.held"])
    for rank in range(2):  # which were told of the end
        assert json.loads((folder / f"resumed-{rank}.json").read_text()) == [9, 6]


def test_processes_that_do_not_belong_together_are_refused(folder):
    first, second = (json.loads((folder / f"refused-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    seed, diagnose, merge, data, drifted = first
    assert "train.seed is 0 in process 0 and 1 in process 1" in seed
    assert "train.diagnose" in diagnose
    assert "merge.name and attack.name" in merge
    assert "12 clients" in data
    assert "13 clients" in data
    assert "after round 7 the processes of this run do not hold the same weights" in drifted


def test_processes_end_together_and_one_says_why(folder):
    scenes = json.loads((folder / "commands.json").read_text())
    said = {name: "".join(scene["said"]) for name, scene in scenes.items()}
    codes = {name: scene["codes"] for name, scene in scenes.items()}
    assert codes == {
        "mistake": [2, 2], "many": [2, 2], "diverged": [3, 3], "killed": [4, -9],
        "first killed": [-9, 4], "stopped": [130, 130],
    }  # fmt: skip
    assert said["mistake"].count("method.k must be from 0 to 75, got -1") == 1
    assert said["many"].count("run it without torchrun") == 1
    assert said["diverged"].count("diverged: the loss became") == 1
    assert json.loads((folder / "diverged" / "result.json").read_text())["status"] == "diverged"
    assert "error: another process of this run has ended; stopped; round " in said["killed"]
    assert "to go on: fetchsgd train first --resume" in said["first killed"]
    assert said["stopped"].count("stopped; round ") == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_clients_are_shared_out(size):
    generator = np.random.default_rng(size)
    spreads = [Spread(Ranks(rank, size)) for rank in range(size)]
    for _ in range(20):
        costs = generator.integers(1, 9, generator.integers(1, 40))
        parts = [spread.by_cost(costs) for spread in spreads]
        assert np.concatenate([part.places for part in parts]).tolist() == list(range(len(costs)))
        assert len(parts[0].places)
        busy = all(len(part.places) for part in parts)
        assert all(part.all_busy == busy for part in parts)
        # No process has more to do than its share and the largest client.
        most = max(int(costs[part.places].sum()) for part in parts)
        assert most <= costs.sum() / size + costs.max()
        clients = generator.permutation(100)[: len(costs)]
        parts = [spread.by_number(clients) for spread in spreads]
        assert sorted(np.concatenate([part.places for part in parts])) == list(range(len(costs)))
