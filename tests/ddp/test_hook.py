"""The hook in two real processes over gloo; scenarios.py says what they do."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).with_name("scenarios.py")
SECONDS = 300


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both ranks found. Processes of pytest that share a run share one pair of ranks."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "ddp"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            run_ranks(folder)
            (folder / "done").touch()
    parts = [[json.loads((folder / f"{p}-{r}.json").read_text()) for r in (0, 1)] for p in PARTS]
    printed = [{"example": (folder / f"example-{r}.txt").read_text()} for r in (0, 1)]
    return [first | fresh | text for first, fresh, text in zip(*parts, printed, strict=True)]


PARTS = ("first", "fresh")


def run_ranks(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(SCENARIOS), str(folder), str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_cell_for_each_weight_is_plain_ddp(found):
    for rank in found:
        assert rank["as_plain"]["a cell for each"] < 1e-6


def test_steps_before_the_first_compressed_one_are_plain_ddp(found):
    for rank in found:
        assert rank["as_plain"]["warm-up"] < 1e-6
        assert rank["as_plain"]["one compressed"] > 1e-4


def test_weights_and_state_are_the_same_bits_on_all_ranks(found):
    one, two = (rank["replicas"] for rank in found)
    assert one == two
    assert len({weights for weights, _ in one.values()}) == len(one)  # all kinds train differently


def test_matrices_of_low_rank(found):
    one, two = (rank["low_rank"] for rank in found)
    assert one == two
    assert one["finite"]
    plain = found[0]["learned"]["plain"]["accuracy"]
    assert one["accuracy"] > plain - 0.05
    # Of (64, 48) and (48, 32), factors of 4 columns in bytes; the rest is not worth it.
    exact = 48 + 32 + 64 + 10 + 320
    assert one["sent"] < 78 * (4 * (64 + 48 + 48 + 32) + 2 * (exact + 100)) + 8 * 5400 * 4


def test_buckets_are_rebuilt_into_several_after_the_first_step(found):
    seen = found[0]["rebuilt"]
    assert [bucket for step, bucket, _ in seen if step == 0] == [0]
    later = [[bucket for step, bucket, _ in seen if step == later] for later in (1, 2)]
    assert later[0] == later[1] == list(range(len(later[0])))
    assert len(later[0]) > 1


def test_accumulated_gradients_are_reduced_once(found):
    for rank in found:
        assert rank["accumulated"]["difference"] < 1e-6
        assert rank["accumulated"]["steps"] == 4


def test_parameters_that_some_or_all_ranks_do_not_use(found):
    assert found[0]["unused"] == found[1]["unused"]
    assert found[0]["unused"]["untouched"]
    assert found[0]["unused"]["finite"]


def test_ranks_with_fewer_batches_keep_up(found):
    assert found[0]["joined"] == found[1]["joined"]
    assert found[0]["joined"]["steps"] == 7


def test_digits_are_learned_at_an_eighth_of_the_bytes(found):
    result = found[0]["learned"]
    assert result["plain"]["accuracy"] > 0.85
    for ours in ("8x", "8x, prior"):
        assert result[ours]["accuracy"] > result["plain"]["accuracy"] - 0.05


def test_bytes_are_those_of_the_tables_and_of_what_is_never_compressed(found):
    weights, exact = 64 * 48 + 48 * 32 + 32 * 10, 48 + 32 + 64 + 10
    # A byte for each cell; two numbers about each bucket, and one about each of three tensors.
    cells, about, sizes = weights // 2, 2, 3
    first = 4 * (cells + exact + about + sizes)  # in float32, before there is a step
    later = cells + 2 * (exact + 2 * about + sizes)
    assert found[0]["learned"]["8x"]["sent"] == first + 79 * later


def test_what_is_not_finite_reaches_all_ranks_and_no_memory(found):
    for rank in found:
        assert rank["not_finite"] == {"nan": True, "kept": True}
        assert rank["not_finite_together"] == {"nan": True, "kept": True}


def test_buckets_together_are_one_bucket_to_the_bit(found):
    assert found[0]["as_one_bucket"] == found[1]["as_one_bucket"]
    for together, single in found[0]["as_one_bucket"].values():
        assert together == single


def test_which_buckets_are_exchanged_together(found):
    assert found[0]["some_together"] == found[1]["some_together"]
    seen = {name: run[2] for name, run in found[0]["some_together"].items()}
    assert seen["by default"] == seen["alone"]  # on a CPU
    alone = [row for row in seen["alone"] if row[0] == 3]
    assert [index for _, index, _, _ in alone] == list(range(len(alone)))
    assert len(alone) > 2
    count, size = len(alone), sum(nbytes for *_, nbytes in alone)
    assert [row for row in seen["all"] if row[0] == 3] == [[3, 0, count, size]]
    some = [row for row in seen["some"] if row[0] == 3]
    assert 1 < len(some) < count
    assert all(nbytes >= 0.002 * 2**20 for *_, nbytes in some[:-1])
    assert [index for _, index, _, _ in some] == [
        sum(many for *_, many, _ in some[:at]) for at in range(len(some))
    ]


def test_buckets_of_two_kinds_of_numbers_are_not_put_together(found):
    assert found[0]["mixed_kinds"] == found[1]["mixed_kinds"]
    steps = [step for step, *_ in found[0]["mixed_kinds"][2]]
    assert all(steps.count(step) >= 2 for step in steps)


def test_ranks_with_fewer_batches_gather_the_same_buckets(found):
    assert found[0]["joined_together"] == found[1]["joined_together"]
    assert [steps for *_, steps in found[0]["joined_together"]] == [7, 7]


def test_accumulated_gradients_are_reduced_once_together(found):
    for rank in found:
        assert rank["accumulated_together"]["difference"] < 1e-6
        assert rank["accumulated_together"]["steps"] == 3


def test_a_table_that_cannot_be_read_ends_the_backward_pass(found):
    for rank in found:
        assert "a table that cannot be read" in rank["failed_reading"]


def test_a_fresh_process_goes_on_from_the_state_of_rank_0(found):
    for rank in found:
        assert rank["resumed"] == rank["saved"]
    assert found[0]["saved"] == found[1]["saved"]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("dtype", "got torch.float64"),
        ("apart", "differs between rank 0 and rank 1"),
        ("model", "not of the model which SketchState was made with"),
    ],
)
def test_mistakes_are_told_on_every_rank(found, mistake, words):
    for rank in found:
        assert words in rank["mistakes"][mistake]


def test_the_example_learns_with_few_bytes(found):
    accuracy, sent, whole = re.fullmatch(
        r"accuracy ([\d.]+) %\n([\d,]+) bytes a step instead of ([\d,]+)\n", found[0]["example"]
    ).groups()
    assert float(accuracy) > 90
    assert int(sent.replace(",", "")) < int(whole.replace(",", "")) / 20
    assert found[1]["example"] == ""
