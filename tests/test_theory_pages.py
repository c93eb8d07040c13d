"""What docs/method.md and docs/hash.md say of the defaults of fresh hashes, and of one another."""

import re
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fetchsgd.methods import FetchSGD
from fetchsgd.report.runs import find_runs
from fetchsgd.server.grids.steps import StepGrid
from fetchsgd.sketch.count_sketch import MAX_DEFAULT_BLOCK, MIN_BLOCKS_ACROSS, default_block

ROOT = Path(__file__).parents[1]
METHOD, HASH = (
    re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text()) for page in ("method.md", "hash.md")
)
DECODERS = [
    ("frontier", {"method.decode": "auto", "train.average": None, "method.nesterov": None}),
    ("rows-and-blocks", {"method.decode": "unbiased"}),
]


def test_what_the_prior_gains_is_what_was_measured():
    told = []
    for file, more in DECODERS:
        settings = {"method.cols": 325_000, "method.k": 0, "schedule.peak": 0.22, **more}
        runs = [
            run
            for run in find_runs([ROOT / f"results/cifar10-{file}.jsonl"])
            if run.method == "fetchsgd"
            and all(run.settings.get(key) == value for key, value in settings.items())
        ]
        assert sorted(run.seed for run in runs) == [0, 1, 2]
        assert {f"{run.compression('upload', 'wire'):.0f}" for run in runs} == {"20"}
        down = fmean(run.compression("download", "wire") for run in runs)
        told.append((f"{100 * fmean(run.value for run in runs):.1f} %", f"{down:.0f}x"))
    (prior, its_down), (unbiased, its_own) = told
    assert (
        f"On CIFAR10 at 20x up it has {prior} at {its_down} down, "
        f'where `"unbiased"` has {unbiased} at {its_own} ('
    ) in METHOD


def block_of(cols, hash):
    k = 1 if hash == "fixed" else 0
    return FetchSGD(10_000_000, k=k, cols=cols, hash=hash).sketch.block


def test_default_blocks_are_those_of_the_page():
    large = {hash: block_of(1_000_000, hash) for hash in ("fixed", "fresh")}
    assert (
        f'takes blocks of {large["fixed"]} with `hash = "fixed"` and of {large["fresh"]} with '
        '`"fresh"`'
    ) in HASH
    assert [block_of(8191, hash) for hash in large] == [1, 1]
    assert [block_of(8192, hash) for hash in large] == [2, 2]
    assert "a block is 1 below 8,192 columns" in HASH
    assert f"goes up to blocks of {MAX_DEFAULT_BLOCK:,}" in HASH
    for cols in (4096, 10_000, 650_000, 10**8):
        assert default_block(cols) / cols <= 1 / MIN_BLOCKS_ACROSS == 1 / 4096
    assert default_block(4095) == 1


@pytest.mark.parametrize(("owed", "moved"), [(0.49, 0), (0.51, 1), (-0.51, -1), (1.49, 1)])
def test_a_weight_moves_once_more_than_half_a_step_is_owed_to_it(owed, moved):
    assert "a weight moves once more than half a step is owed to it" in METHOD
    grid = StepGrid((4,), torch.tensor([1.0, -1.0, 1.0, -1.0]), step=0.25)
    method = FetchSGD(4, cols=4, momentum=0.0, decode="unbiased")
    wanted = torch.tensor([owed * 0.25, 0.0, 0.0, 0.0])
    state = method.init(torch.device("cpu"))
    table = method.message.compress(wanted, 0)
    sent, state = method.step(table, state, 1.0, grid.deliver(grid.start(grid.origin)))
    assert sent.steps.tolist() == [moved, 0, 0, 0]
    torch.testing.assert_close(state["error"], wanted - sent.dense)
