"""Runs with liars: what robust merging does in a simulation, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.sums.layout import Layout


def make(method, *sets):
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
    return Run(resolve(given, ["train.clients_per_round=12", *sets]))


@pytest.mark.parametrize("method", ["fetchsgd", "local_topk", "uncompressed"])
def test_without_liars_and_clip_groups_of_one_are_the_mean(method):
    sets = ["merge.name=clipped", "merge.clip=0"]
    plain, robust = (make(method, *more).complete().training for more in ([], sets))
    torch.testing.assert_close(robust.weights, plain.weights, rtol=1e-4, atol=1e-6)
    assert robust.ledger.wire_bytes == plain.ledger.wire_bytes


def test_a_million_times_as_long_ends_a_run_unless_it_is_clipped():
    sets = ["train.epochs=30", "attack.name=scale", "attack.share=0.2"]
    with pytest.raises(DivergedError):
        make("uncompressed", *sets).complete()
    ended = make("uncompressed", *sets, "merge.name=median")
    assert ended.complete().summary["value"] > 0.8


@pytest.mark.parametrize(
    "more",
    [
        ["merge.name=filtered", "merge.groups=5"],
        ["merge.name=filtered", "merge.groups=5", "upload.bits=4"],
        ["merge.name=vetted"],
        ["merge.name=vetted", "merge.groups=4", "upload.sum=modular"],
    ],
)
def test_resumed_equals_uninterrupted(more, tmp_path):
    sets = ["train.checkpoint_every=1", "attack.name=replay", "attack.share=0.3", *more]
    make("fetchsgd", *sets, "train.epochs=6").execute(tmp_path / "whole")
    short = make("fetchsgd", *sets, "train.epochs=6")

    class StopError(BaseException):
        pass

    def stop(round, *_):
        if round == 3:
            raise StopError

    recorded = short.clients
    short.clients = lambda training, rate: (
        stop(training.round) or recorded(training, rate)
    )  # ends before round 3
    with pytest.raises(StopError):
        short.execute(tmp_path / "cut")
    make("fetchsgd", *sets, "train.epochs=6").execute(tmp_path / "cut", resume=True)
    whole, cut = (load_file(tmp_path / name / FILE)["weights"] for name in ("whole", "cut"))
    assert torch.equal(whole, cut)


SUMS = ["upload.sum=modular", "upload.sum_bits=16", "upload.sum_step=0.0001"]


def test_sums_of_groups_are_merged_as_groups_of_replies_are(tmp_path):
    """But for rounding to whole levels, a secure sum of each group changes nothing."""
    sets = ["merge.name=vetted", "merge.groups=4", "merge.clip=0", "attack.name=flip"]
    sets += ["attack.share=0.1", "train.epochs=4"]
    plain = make("uncompressed", *sets).complete()
    summed = make("uncompressed", *sets, *SUMS).complete()
    assert summed.training is not None
    assert plain.training is not None
    moved = plain.training.weights - make("uncompressed").start().weights
    away = summed.training.weights - plain.training.weights
    assert float(away.norm()) < 0.02 * float(moved.norm())
    assert summed.summary["sum_wraps"] == 0


def test_every_group_pays_for_a_secure_sum_of_its_own():
    """In a cohort of 12 in four groups, three clients have two neighbours each, and not eleven."""
    sets = [*SUMS, "upload.secure=true", "upload.colluding=0", "upload.dropping=0.1"]
    one, four = (
        make("uncompressed", *sets, *more).complete().training
        for more in ([], ["merge.name=vetted", "merge.groups=4"])
    )
    assert one is not None
    assert four is not None
    settings = make("uncompressed", *sets).setup.config.quantiser
    layout = Layout.of(make("uncompressed").setup.model.dim)
    for training, parts in ((one, [12]), (four, [3, 3, 3, 3])):
        known = [settings.protocol(clients, layout.cells) for clients in parts]
        up = sum(found.up for found in known) * training.round
        assert float(training.ledger.wire_up) == up
    assert float(four.ledger.wire_up) < float(one.ledger.wire_up)


def test_a_small_last_cohort_has_fewer_groups_instead_of_smaller_ones():
    run = make("uncompressed", *SUMS, "merge.name=vetted", "merge.groups=4")
    assert run.merger is not None
    run.merger.open(0, list(range(12)))
    assert run.merger.groups.most == 4
    run.merger.open(1, list(range(7)))
    assert run.merger.groups.most == 2


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["merge.name=median", "upload.sum=modular"], "merge.groups of at most 4"),
        (["merge.name=median", "privacy.mode=central", "privacy.noise=1"], "with privacy take"),
        (["merge.name=median", "train.diagnose=true"], "train.diagnose follows the mean"),
        (["attack.name=examples", "upload.sum=modular"], "weights are part of the sum"),
    ],
)
def test_what_cannot_be_had_is_refused(sets, sentence):
    with pytest.raises(UserError, match=sentence):
        make("fetchsgd", *sets)
