"""What the methods have in common, and what tells them apart."""

import warnings

import pytest
import torch

from fetchsgd.methods import FedAvg, FetchSGD, LocalTopK, TrueTopK, Uncompressed, Upload
from fetchsgd.quantisers.bits import Bits
from fetchsgd.server.grids import Float16Grid, Float32Grid
from fetchsgd.vector import SparseVector

CPU = torch.device("cpu")
FLOAT32 = Float32Grid((200,), torch.zeros(200))
FLOAT16 = Float16Grid((200,), torch.zeros(200))


def gradients(dim=200, rounds=12, seed=0):
    return torch.randn(rounds, dim, generator=torch.Generator().manual_seed(seed))


def train(method, vectors, rate=0.1):
    """Weights after each round, starting from zero."""
    weights, state = torch.zeros(method.dim), method.init(CPU)
    seen = []
    for round, vector in enumerate(vectors):
        mean = method.message.compress(vector, round) if method.message.linear else vector
        sent, state = method.step(mean, state, rate, round=round)
        weights = FLOAT32.move(FLOAT32.start(weights), sent).weights
        seen.append(weights)
    return torch.stack(seen), state


def paper(*given, **options):
    """FetchSGD as in the paper."""
    return FetchSGD(*given, hash="fixed", **options)


both_forms = pytest.mark.parametrize("kind", [FetchSGD, paper], ids=["fresh", "paper"])


def momentum_sgd(vectors, rho, rate):
    weights, velocity, seen = torch.zeros(vectors.shape[1]), torch.zeros(vectors.shape[1]), []
    for vector in vectors:
        velocity = rho * velocity + vector
        weights = weights - rate * velocity
        seen.append(weights)
    return torch.stack(seen)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_uncompressed_is_momentum_sgd(rho):
    for kind in (Uncompressed, FedAvg):
        got, _ = train(kind(200, momentum=rho), gradients())
        torch.testing.assert_close(got, momentum_sgd(gradients(), rho, 0.1))


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("position", ["inside", "outside"])
def test_fetchsgd_with_all_of_k_and_a_wide_table_is_momentum_sgd(rho, position):
    method = paper(
        200, k=200, cols=4000, rows=25, momentum=rho, error_reset="subtract",
        mask_momentum=False, lr_position=position,
    )  # fmt: skip
    got, state = train(method, gradients())
    torch.testing.assert_close(got, momentum_sgd(gradients(), rho, 0.1), rtol=1e-3, atol=1e-4)
    assert method.sketch.l2(state["error"]) < 1e-3


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_true_topk_with_all_of_k_is_momentum_sgd(rho):
    got, _ = train(TrueTopK(200, k=200, momentum=rho, mask_momentum=False), gradients())
    torch.testing.assert_close(got, momentum_sgd(gradients(), rho, 0.1))


def test_masking_momentum_at_all_of_k_leaves_plain_sgd():
    """Why large k does worse in appendix A.3: what is sent loses its momentum."""
    got, _ = train(TrueTopK(200, k=200, momentum=0.9), gradients())
    torch.testing.assert_close(got, momentum_sgd(gradients(), 0.0, 0.1))


def test_true_topk_loses_nothing():
    """given = sent + kept."""
    method = TrueTopK(200, k=15, momentum=0.0)
    got, state = train(method, gradients())
    torch.testing.assert_close(-got[-1] + state["error"], 0.1 * gradients().sum(dim=0))


@both_forms
def test_fetchsgd_approximates_true_topk_without_collisions(kind):
    """With a table so wide that nothing collides, both send the same."""
    vectors = gradients()
    sketched, _ = train(kind(200, k=15, cols=100_000, rows=3, block=1), vectors)
    exact, _ = train(TrueTopK(200, k=15), vectors)
    torch.testing.assert_close(sketched, exact, rtol=1e-4, atol=1e-5)


def test_subtracting_with_three_rows_loses_nothing():
    method = paper(200, k=15, cols=60, rows=3, momentum=0.0, error_reset="subtract")
    got, state = train(method, gradients())
    expected = method.sketch.sketch(0.1 * gradients().sum(dim=0) + got[-1])
    torch.testing.assert_close(state["error"], expected, rtol=1e-3, atol=1e-4)


def test_subtracting_with_one_row_blows_up_and_says_so():
    with pytest.warns(UserWarning, match="error_reset = 'subtract' diverges with one row"):
        method = paper(2000, k=600, cols=50, rows=1, error_reset="subtract")
    assert "diverges with one row" in method.notes[0]
    got, _ = train(method, gradients(2000, 30))
    calm, _ = train(paper(2000, k=600, cols=50, rows=1), gradients(2000, 30))
    assert not got[-1].norm() < 1e6
    assert calm[-1].norm() < 1e4


def test_zeroing_clears_what_was_sent_from_error_and_momentum():
    method = paper(200, k=15, cols=60)
    sent, state = method.step(method.message.compress(gradients()[0]), method.init(CPU), 0.1)
    touched = method.sketch.sketch(sent.update) != 0
    assert touched.any()
    assert (state["error"][touched] == 0).all()
    assert (state["momentum"][touched] == 0).all()
    assert (state["error"][~touched] != 0).any()
    kept = paper(200, k=15, cols=60, mask_momentum=False)
    _, state = kept.step(kept.message.compress(gradients()[0]), kept.init(CPU), 0.1)
    assert (state["momentum"][touched] != 0).all()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("grid", [FLOAT32, FLOAT16], ids=["exactly", "float16"])
def test_zeroing_clears_where_the_sketch_of_what_was_sent_is_not_zero(rows, grid):
    """To the bit, also where it cancels, as it does in so small a table."""
    method, rate = paper(200, k=60, cols=20, rows=rows, block=1), 0.1
    position, state = grid.start(gradients(seed=1)[0]), method.init(CPU)
    has_cancelled = False
    for vector in gradients():
        momentum = method.momentum * state["momentum"] + method.message.compress(vector)
        error = rate * momentum + state["error"]
        deliver = grid.deliver(position)
        delivered, state = method.step(method.message.compress(vector), state, rate, deliver)
        sent = method.sketch.sketch(delivered.update) != 0
        assert torch.equal(state["momentum"], torch.where(sent, 0, momentum))
        assert torch.equal(state["error"][~sent], error[~sent])
        if grid.dtype == torch.float32:
            assert (state["error"][sent] == 0).all()
        has_cancelled |= not torch.equal(sent, method.sketch.touched(delivered.update))
        position = grid.move(position, delivered)
    assert has_cancelled == (rows > 1)


@pytest.mark.parametrize(
    "options",
    [
        {"hash": "fixed"},
        {"hash": "fixed", "error": "window", "window": 3},
        {"decode": "prior"},
        {"decode": "unbiased", "rows": 3},
        {"revisit": 2.0},
    ],
    ids=str,
)
def test_a_step_leaves_the_state_that_it_is_given(options):
    method = FetchSGD(200, k=15, cols=60, **options)
    state = method.init(CPU)
    for vector in gradients(rounds=5):
        mean = method.message.compress(vector)
        given = [part.clone() for part in (mean, *state.values())]
        _, after = method.step(mean, state, 0.1)
        assert all(map(torch.equal, given, (mean, *state.values())))
        state = after


@both_forms
def test_a_round_at_rate_zero_clears_nothing(kind):
    """What is found is k zeros, as in the first round of a schedule that starts there."""
    method = kind(200, k=15, cols=60)
    mean = method.message.compress(gradients()[0])
    sent, state = method.step(mean, method.init(CPU), 0.0)
    assert len(sent.sparse) == 15
    assert (sent.sparse.values == 0).all()
    if method.is_fresh:
        mean = method.read(mean, method.init(CPU), 0).estimate
    assert torch.equal(state["momentum"], mean)


def test_local_topk_keeps_each_clients_largest():
    message = LocalTopK(6, k=2).message
    vectors = torch.tensor([[1.0, -5, 3, 0, 0, 0], [0, 0, 0, 2, -1, 0.5]])
    upload = Upload(Bits(), key=0)
    total, numbers, *_ = message.merge(
        vectors, torch.tensor([0.5, 2.0]), torch.arange(2), upload, None
    )
    assert total.tolist() == [0, -2.5, 1.5, 4, -2, 0]
    assert int(numbers) == 4


@pytest.mark.parametrize("kind", [FetchSGD, paper, TrueTopK, LocalTopK, Uncompressed, FedAvg])
def test_a_mean_that_is_none_of_this_methods_gets_a_sentence(kind):
    options = {} if kind in (Uncompressed, FedAvg) else {"k": 5}
    method = kind(50, **options, **({"cols": 20} if kind in (FetchSGD, paper) else {}))
    good = torch.ones(method.message.shape)
    state = method.init(CPU)
    for wrong in (good.flatten()[:-1], good[None], good.double()):
        with pytest.raises(ValueError, match="mean must be float32 of shape"):
            method.step(wrong, state, 0.1)
    bad = good.clone()
    bad.view(-1)[3] = float("nan")
    with pytest.raises(ValueError, match="mean has 1 cells that are not finite"):
        method.step(bad, state, 0.1)
    method.step(bad, state, 0.1, check_finite=False)  # whoever looks at the loss sees it there
    method.step(good * 3e38, state, 0.1)  # finite, though its sum is not


@pytest.mark.parametrize("kind", [FetchSGD, paper, TrueTopK, LocalTopK])
def test_k_must_fit_the_model(kind):
    more = {"cols": 10} if kind in (FetchSGD, paper) else {}
    least = 0 if kind is FetchSGD else 1
    with pytest.raises(ValueError, match=f"method.k must be from {least} to 50, got 51"):
        kind(50, k=51, **more)
    with pytest.raises(ValueError, match="method.momentum must be from 0 to 1, got 1.5"):
        kind(50, k=5, momentum=1.5, **more)


@both_forms
def test_a_table_larger_than_the_model_is_allowed_with_a_note(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = kind(50, k=5, cols=60)
    assert "no smaller than the model (50 weights)" in method.notes[0]


@both_forms
def test_updates_are_sparse_where_they_should_be(kind):
    sent, _ = train_one(kind(200, k=15, cols=60))
    assert isinstance(sent.update, SparseVector)
    assert len(sent.update) == 15


def train_one(method):
    return method.step(method.message.compress(gradients()[0]), method.init(CPU), 0.1)
