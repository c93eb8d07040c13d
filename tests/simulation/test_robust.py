"""Runs with liars: what robust merging does in a simulation, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run


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


@pytest.mark.parametrize("bits", [32, 4])
def test_resumed_equals_uninterrupted(bits, tmp_path):
    sets = [
        "train.checkpoint_every=1", "merge.name=filtered", "merge.groups=5",
        "attack.name=replay", "attack.share=0.3", f"upload.bits={bits}",
    ]  # fmt: skip
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


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["merge.name=median", "upload.sum=modular"], "sees one sum of all"),
        (["merge.name=median", "privacy.mode=central", "privacy.noise=1"], "with privacy take"),
        (["merge.name=median", "train.diagnose=true"], "train.diagnose follows the mean"),
        (["attack.name=flip", "upload.sum=modular"], "behind masks no rule sees"),
    ],
)
def test_what_cannot_be_had_is_refused(sets, sentence):
    with pytest.raises(UserError, match=sentence):
        make("fetchsgd", *sets)
