"""FetchSGD with a fresh hash in every round: messages, options that go together, whole runs."""

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.errors import UserError
from fetchsgd.methods import FetchSGD, TrueTopK, Uncompressed, Upload
from fetchsgd.methods.decoding import Prior, Unbiased
from fetchsgd.quantisers import Bits
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.server.grids import Float32Grid, StepGrid
from fetchsgd.simulation import Run
from fetchsgd.sketch.hashing import round_seed
from fetchsgd.wire import MismatchError, SketchTable, decode, encode

CPU = torch.device("cpu")
DIM = 200
UPLOAD = Upload(Bits(), key=3)


def gradients(rounds=12, seed=0):
    return torch.randn(rounds, DIM, generator=torch.Generator().manual_seed(seed))


def fresh(**options):
    return FetchSGD(DIM, **({"k": 15, "cols": 50} | options))


def written(method, round, vector=None):
    vector = gradients()[0] if vector is None else vector
    return method.message.write(vector, None, 0, round, UPLOAD)


def why_refused(method, payload, round):
    with pytest.raises(MismatchError) as refused:
        decode(encode(payload), expect=lambda header: method.message.check(header, round, Bits()))
    return refused.value.reason


def test_messages_carry_the_seed_of_their_round():
    method = fresh(sketch_seed=9)
    for round in (0, 1, 77):
        payload = decode(encode(written(method, round)))
        assert isinstance(payload, SketchTable)
        assert (payload.seed, payload.round) == (round_seed(9, round), round)
        table = method.message.read(payload).numbers
        assert torch.equal(table, method.sketch.for_round(round).sketch(gradients()[0]))
    assert round_seed(9, 0) != round_seed(9, 1) != round_seed(8, 1) != 9


def test_another_round_s_hash_is_refused():
    method, paper = fresh(), fresh(hash="fixed")
    assert why_refused(method, written(method, 3), 4) == "round"
    other = method.sketch.for_round(5)
    values = written(method, 4).values
    told = SketchTable(
        DIM, 1, 50, other.block, other.seed, values, 4, other.hash
    )  # its number is right, and its hash is not
    assert why_refused(method, told, 4) == "seed"
    assert why_refused(method, written(paper, 4), 4) == "seed"
    assert why_refused(paper, written(method, 4), 4) == "seed"
    assert why_refused(method, written(fresh(sketch_seed=1), 4), 4) == "seed"


def test_a_step_reads_the_hash_of_its_round():
    method = fresh(decode="unbiased", noise_limit=100.0, momentum=0.0, k=DIM)
    vector = gradients()[0]
    for round in (0, 6):
        table = method.message.compress(vector, round)
        sent, _ = method.step(table, method.init(CPU), 1.0, round=round)
        expected = method.sketch.for_round(round).estimate(table)
        torch.testing.assert_close(sent.sparse.to_dense(), expected)
        mistaken, _ = method.step(table, method.init(CPU), 1.0, round=round + 1)
        assert not torch.allclose(mistaken.sparse.to_dense(), expected, atol=0.1)


def test_the_decoder_follows_from_the_options():
    assert fresh().decoder == Prior(2.5)
    assert fresh(rows=3).decoder == Unbiased(2.5)
    assert fresh(decode="unbiased", noise_limit=4.0).decoder == Unbiased(4.0)
    assert fresh(decode="prior").decoder == Prior(2.5)


def test_momentum_and_error_are_those_of_true_topk_on_what_is_decoded():
    """The sketch is only how the gradient travels."""
    method, exact = fresh(), TrueTopK(DIM, k=15)
    state, other = method.init(CPU), exact.init(CPU)
    for round, vector in enumerate(gradients()):
        table = method.message.compress(vector, round)
        estimate = method.read(table, state, round).estimate
        sent, state = method.step(table, state, 0.1, round=round)
        expected, other = exact.step(estimate, other, 0.1, round=round)
        assert torch.equal(sent.sparse.to_dense(), expected.sparse.to_dense())
        for name in ("momentum", "error"):
            assert torch.equal(state[name], other[name])


@pytest.mark.parametrize("grid", [Float32Grid, StepGrid])
def test_without_k_all_is_sent_and_the_momentum_stays_whole(grid):
    """As with k of all weights and no masking, to the bit; only what is sent is a vector."""
    origin = torch.linspace(-1, 1, DIM)
    deliver = grid((DIM,), origin).deliver(grid((DIM,), origin).start(origin))
    none, every = fresh(k=0), fresh(k=DIM, mask_momentum=False)
    state, other = none.init(CPU), every.init(CPU)
    for round, vector in enumerate(gradients()):
        table = none.message.compress(vector, round)
        sent, state = none.step(table, state, 0.1, deliver, round=round)
        expected, other = every.step(table, other, 0.1, deliver, round=round)
        assert torch.equal(sent.dense, expected.sparse.to_dense())
        assert state.keys() == other.keys()
        for name, part in state.items():
            assert torch.equal(part, other[name]), name


def test_without_k_and_collisions_it_is_sgd_with_momentum():
    """A permutation of as many cells as weights shares none."""
    method, plain = fresh(k=0, cols=DIM, decode="unbiased"), Uncompressed(DIM)
    state, other = method.init(CPU), plain.init(CPU)
    for round, vector in enumerate(gradients()):
        table = method.message.compress(vector, round)
        sent, state = method.step(table, state, 0.1, round=round)
        expected, other = plain.step(vector, other, 0.1, round=round)
        assert torch.equal(sent.dense, expected.dense)


def test_what_was_sent_lately_counts_more():
    """Two coordinates of 1, then a third of 1.5: whether it takes the place of the second."""
    for revisit, expected in ((1.0, {0, 2}), (2.0, {0, 1})):
        method = TrueTopK(4, k=2, momentum=0.0, revisit=revisit, revisit_rounds=3)
        state = method.init(CPU)
        _, state = method.step(torch.tensor([1.0, 1.0, 0.0, 0.0]), state, 1.0, round=0)
        again = torch.tensor([2.0, 1.0, 1.5, 0.0])
        sent, after = method.step(again, state, 1.0, round=3)
        assert set(sent.sparse.indices.tolist()) == expected
        late, _ = method.step(again, state, 1.0, round=4)
        assert set(late.sparse.indices.tolist()) == {0, 2}
        if revisit > 1:
            assert after["sent"].tolist()[:2] == [3, 3]


REFUSED = [
    ({"error_reset": "subtract"}, "method.error_reset = 'subtract' is about an error inside a sk"),
    ({"lr_position": "outside"}, "method.lr_position = 'outside' is about an error inside a sket"),
    ({"error": "window", "window": 3}, "method.error = 'window' is about an error inside a sketch"),
    ({"recovery": "threshold", "tau": 0.1}, "method.recovery = 'threshold' is about an error ins"),
    ({"decode": "prior", "rows": 3}, "method.decode = 'prior' reads one row, got method.rows = 3"),
    ({"k": 0, "revisit": 2.0}, "method.revisit = 2 says which coordinates are chosen first, and"),
    ({"hash": "fixed", "k": 0}, "method.hash = 'fixed' needs method.k, how many coordinates"),
    ({"noise_limit": 0.5}, "method.noise_limit must be from 1 to 1e.06, got 0.5"),
    ({"revisit": 0.5}, "method.revisit must be from 1 to 1e.06, got 0.5"),
    ({"revisit_rounds": 0}, "method.revisit_rounds must be from 1 to 1.07374e.09, got 0"),
    ({"hash": "fixed", "decode": "prior"}, "method.decode = 'prior' needs method.hash = 'fresh'"),
    ({"hash": "fixed", "revisit": 2.0}, "method.revisit = 2.0 needs method.hash = 'fresh'"),
    ({"hash": "fixed", "decode": "unbiased"}, "method.decode = 'unbiased' needs method.hash = 'f"),
    ({"hash": "fixed", "noise_limit": 3.0}, "method.noise_limit = 3.0 needs method.hash = 'fresh'"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=str)
@pytest.mark.filterwarnings("ignore:method.error_reset")
def test_options_that_make_no_sense_together_get_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fresh(**options)
    with pytest.raises(UserError, match=sentence):
        make(*(f"method.{key}={value!r}" for key, value in options.items()))


def test_a_hash_that_there_is_not_gets_a_sentence():
    with pytest.raises(UserError, match="method.hash must be"):
        make("method.hash='new'")


def make(*sets):
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": "fetchsgd"}}
    return Run(resolve(given, sets))


class StopError(Exception):
    pass


RUNS = [
    (),
    ("decode=unbiased",),
    ("rows=3", "cols=20"),
    ("revisit=2.0", "revisit_rounds=2", "k=5"),
    ("k=0", "grid=steps"),
    ("k=0", "diagnose=true", "diagnose_every=2"),
    ("bits=2", "grid=steps", "log=3"),
    ("quantiser=shared_step", "density=0.5", "grid=float16"),
]


@pytest.mark.parametrize("sets", RUNS, ids=str)
def test_resumed_equals_uninterrupted(sets, tmp_path):
    sets = (*sets, "checkpoint_every=2")
    whole = make(*sets).execute(tmp_path / "whole")

    def stop(seen):
        if seen.round == 5:
            raise StopError

    with pytest.raises(StopError):
        make(*sets).execute(tmp_path / "cut", watch=stop)
    result = make(*sets).execute(tmp_path / "cut", resume=True)
    assert result["value"] == whole["value"]
    assert result["wire_upload_bytes"] == whole["wire_upload_bytes"]
    cut, full = (load_file(tmp_path / name / FILE) for name in ("cut", "whole"))
    assert cut.keys() == full.keys()
    state = [name for name in full if name.startswith("state.")]
    for name in ("weights", *state, *({"size"} & full.keys())):
        assert torch.equal(cut[name], full[name]), name
    assert ("size" in full) == ("quantiser=shared_step" in sets)


def test_every_seed_has_its_own_hashes_and_the_same_seed_the_same(tmp_path):
    ends = {}
    for name, sets in {"one": (), "again": (), "other": ("sketch_seed=1",)}.items():
        make(*sets, "epochs=1").execute(tmp_path / name)
        ends[name] = load_file(tmp_path / name / FILE)["weights"]
    assert torch.equal(ends["one"], ends["again"])
    assert not torch.equal(ends["one"], ends["other"])


def test_it_trains(tmp_path):
    """Three of four cells shared: better than the three classes of the task by chance."""
    result = make("epochs=30", "cols=20", "method.momentum=0.5").execute(tmp_path / "run")
    assert result["value"] > 0.8
