"""Grids: what is sent lies on the grid, what is not sent is kept, and clients end up with the same
bits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fetchsgd.methods import FedAvg, FetchSGD, LocalTopK, TrueTopK, Uncompressed
from fetchsgd.server.grids import GRIDS, HeldVersion, StepGrid
from fetchsgd.server.grids.steps import STEP_BITS, step_sizes
from fetchsgd.vector import FlatModel, SparseVector
from fetchsgd.wire import Floats, Integers, SparseUpdate

CPU = torch.device("cpu")


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FlatModel(nn.Sequential(nn.Linear(9, 20), nn.Linear(20, 3)))


def grid_of(name, fraction=0.125):
    flat = model()
    origin = flat.weights()
    options = {"step": fraction} if name == "steps" else {}
    return GRIDS[name](tuple(flat.sizes), origin, **options), origin


def some_update(dim, seed, scale=0.05, dense=False):
    generator = np.random.default_rng(seed)
    values = scale * torch.from_numpy(generator.standard_normal(dim)).float()
    if dense:
        return values
    chosen = np.sort(generator.permutation(dim)[: dim // 4])
    return SparseVector(dim, torch.from_numpy(chosen), values[: len(chosen)])


def dense_of(update):
    return update.to_dense() if isinstance(update, SparseVector) else update


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", GRIDS)
def test_weights_move_by_what_is_sent(name, dense):
    grid, origin = grid_of(name)
    position = grid.start(origin)
    for seed in range(5):
        wanted = some_update(len(origin), seed, dense=dense)
        sent = grid.deliver(position)(wanted)
        after = grid.move(position, sent)
        torch.testing.assert_close(after.weights, position.weights - dense_of(sent.update))
        untouched = dense_of(wanted) == 0
        assert torch.equal(after.weights[untouched], position.weights[untouched])
        position = after


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_touched_weights_fit_into_sixteen_bits(name):
    grid, origin = grid_of(name)
    position = grid.start(origin)
    sent = grid.deliver(position)(some_update(len(origin), 1))
    after = grid.move(position, sent)
    moved = after.weights[sent.sparse.indices[sent.sparse.values != 0]]
    assert len(moved)
    assert torch.equal(moved, moved.to(getattr(torch, name)).float())


def test_steps_are_whole_and_rounding_errs_by_half_a_step_at_most():
    grid, origin = grid_of("steps")
    assert isinstance(grid, StepGrid)
    wanted = some_update(len(origin), 2, dense=True)
    sent = grid.deliver(grid.start(origin))(wanted)
    step = torch.cat([
        s.expand(n) for s, n in zip(grid.tensor_steps, model().sizes, strict=True)
    ])  # fmt: skip
    assert ((sent.dense - wanted).abs() <= 0.5001 * step).all()
    assert torch.equal(sent.dense, sent.steps.float() * step)
    after = grid.move(grid.start(origin), sent)
    assert torch.equal(after.weights, grid.weights_at(after.steps))


def test_changes_are_as_coarse_as_the_smallest_of_them_allows():
    """So a fine step costs nothing: what is sent are small multiples of a power of two of it."""
    grid, origin = grid_of("steps", 1 / 128)
    wanted = some_update(len(origin), 2, dense=False)
    size = wanted.values.abs() + 0.01  # none is next to nothing
    wanted = SparseVector(len(origin), wanted.indices, size * wanted.values.sign())
    single = replace(grid, coarse=False)
    step = grid.step_at(wanted)
    sent = grid.deliver(grid.start(origin))(wanted)
    assert torch.equal(sent.sparse.values, sent.steps.float() * step)
    least = wanted.values.abs().min()
    for whole, one in zip(sent.steps.tolist(), step.tolist(), strict=True):
        unit = max(2 ** math.floor(math.log2(float(least) / one)), 1)
        assert whole % unit == 0
        assert whole != 0  # nothing that is wanted is left out
    assert ((sent.sparse.values - wanted.values).abs() <= 0.5001 * torch.maximum(step, least)).all()
    plain = single.deliver(grid.start(origin))(wanted)
    assert ((plain.sparse.values - wanted.values).abs() <= 0.5001 * step).all()
    assert len(sent.steps.unique()) < len(plain.steps.unique())


def test_the_smallest_change_counts_in_steps_of_each_tensor():
    """Of a tensor with large steps fewer make up the smallest change than of one with small."""
    grid = StepGrid((2, 2), torch.tensor([1.0, -1.0, 0.01, -0.01]), step=1 / 128)
    wanted = SparseVector(4, torch.arange(4), torch.tensor([0.1, -0.15, 0.1, -0.15]))
    sent = grid.deliver(grid.start(grid.origin))(wanted)
    assert sent.steps.tolist() == [16, -16, 1024, -2048]
    assert ((sent.sparse.values - wanted.values).abs() <= 0.0501).all()


def test_zeros_among_what_is_wanted_change_nothing_else():
    grid, origin = grid_of("steps", 1 / 128)
    deliver = grid.deliver(grid.start(origin))
    values = torch.tensor([0.1, 0.2, 0.3])
    alone = deliver(SparseVector(len(origin), torch.tensor([0, 2, 3]), values))
    with_zero = torch.tensor([0.1, 0.0, 0.2, 0.3])
    more = SparseVector(len(origin), torch.arange(4), with_zero)
    assert deliver(more).steps[[0, 2, 3]].tolist() == alone.steps.tolist()
    assert deliver(more).steps[1] == 0


def test_nothing_wanted_and_zeros_among_it():
    grid, origin = grid_of("steps")
    deliver = grid.deliver(grid.start(origin))
    nothing = SparseVector(len(origin), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    assert len(deliver(nothing).steps) == 0
    zeros = SparseVector(len(origin), torch.arange(3), torch.zeros(3))
    assert deliver(zeros).steps.tolist() == [0, 0, 0]


def test_a_tensor_that_starts_constant_gets_the_usual_step():
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    flat = FlatModel(module)
    grid = StepGrid(tuple(flat.sizes), flat.weights(), 0.5)
    spread = 0.5 * torch.stack([p.detach().std(correction=0) for p in module[0].parameters()])
    expected = torch.cat([spread, spread.mean().expand(2)])
    torch.testing.assert_close(grid.tensor_steps, expected, rtol=2**-STEP_BITS, atol=0)


def test_steps_by_size_go_as_the_root_of_it_and_keep_their_mean():
    flat = model()
    plain = StepGrid(tuple(flat.sizes), flat.weights(), 0.5)
    by_size = replace(plain, by_size=True)
    numbers = torch.tensor(flat.sizes).double()
    factors = by_size.tensor_steps.double() / plain.tensor_steps.double()
    assert len(numbers.unique()) > 1
    expected = numbers.sqrt() * numbers.sum() / (numbers * numbers.sqrt()).sum()
    rounded_twice = 2 * 2.0**-STEP_BITS
    torch.testing.assert_close(factors, expected, rtol=rounded_twice, atol=0)
    mean = float((factors * numbers).sum() / numbers.sum())
    assert mean == pytest.approx(1, rel=rounded_twice)
    alone = replace(plain, sizes=(flat.dim,))
    assert torch.equal(replace(alone, by_size=True).tensor_steps, alone.tensor_steps)


def test_steps_have_few_bits():
    """So what the last bits of a sum depend on, such as the device, does not show."""
    grid, _ = grid_of("steps")
    mantissa, _ = torch.frexp(grid.tensor_steps)
    assert torch.equal(mantissa * 2**STEP_BITS, (mantissa * 2**STEP_BITS).round())
    nudged = grid.origin * (1 + 1e-6 * torch.randn(len(grid.origin)))
    assert torch.equal(step_sizes(nudged, grid.sizes, 0.125), grid.tensor_steps)


@pytest.mark.gpu
def test_steps_are_the_same_on_every_device():
    flat = model()
    on_gpu = StepGrid(tuple(flat.sizes), flat.weights().cuda())
    on_cpu = StepGrid(tuple(flat.sizes), flat.weights())
    assert torch.equal(on_gpu.tensor_steps.cpu(), on_cpu.tensor_steps)
    steps = torch.arange(flat.dim, dtype=torch.int32)
    assert torch.equal(on_gpu.weights_at(steps.cuda()).cpu(), on_cpu.weights_at(steps))


METHODS = {
    "true_topk": lambda dim: TrueTopK(dim, k=40, momentum=0.0),
    "uncompressed": lambda dim: Uncompressed(dim, momentum=0.0),
    "fedavg": lambda dim: FedAvg(dim),
    "local_topk": lambda dim: LocalTopK(dim, k=40),
    # Three rows and 'subtract': the sketch is linear, so its error is exactly what was not sent.
    "fetchsgd": lambda dim: FetchSGD(
        dim, k=40, cols=100, rows=3, momentum=0.0, error_reset="subtract", hash="fixed"
    ),
}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(list(GRIDS)))
@pytest.mark.parametrize("method_name", METHODS)
def test_given_is_sent_plus_kept(method_name, name, seed):
    """Nothing is lost and nothing counted twice, over many rounds, whatever the grid."""
    if name == "float32" and method_name in ("uncompressed", "fedavg", "local_topk"):
        return  # these send all they have
    grid, origin = grid_of(name, fraction=1.0)
    method = METHODS[method_name](len(origin))
    position, state = grid.start(origin), method.init(CPU)
    given_so_far = torch.zeros(len(origin))
    for round in range(6):
        vector = some_update(len(origin), seed + round, scale=0.3, dense=True)
        given_so_far += 0.1 * vector
        mean = method.message.compress(vector) if method.message.linear else vector
        sent, state = method.step(mean, state, 0.1, grid.deliver(position))
        position = grid.move(position, sent)
    kept = given_so_far - (origin - position.weights)
    expected = method.message.compress(kept) if method_name == "fetchsgd" else kept
    torch.testing.assert_close(state["error"], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("position", ["inside", "outside"])
@pytest.mark.parametrize("name", ["float16", "steps"])
def test_one_row_keeps_the_remainder_of_a_cell_once(name, position):
    """The coordinates of a cell tie: its remainder is the mean over what each of them sent."""
    grid, origin = grid_of(name, fraction=1.0)
    dim, cols, rate = len(origin), 60, 0.1
    method = FetchSGD(dim, k=dim // 2, cols=cols, momentum=0.0, lr_position=position, hash="fixed")
    outside = rate if position == "outside" else 1.0
    vector = some_update(dim, 3, scale=3.0, dense=True)
    mean = method.message.compress(vector)
    cells = (rate / outside) * mean
    sent, state = method.step(mean, method.init(CPU), rate, grid.deliver(grid.start(origin)))
    signed = method.sketch.estimate(torch.ones(1, cols))  # the sign of every coordinate
    at = torch.stack([
        method.sketch.sketch(row)[0] for row in torch.eye(dim)[sent.sparse.indices]
    ]).abs().argmax(dim=1)  # fmt: skip
    for cell in range(cols):
        mine = at == cell
        shares = (signed[sent.sparse.indices[mine]] * sent.sparse.values[mine]) / outside
        kept = cells[0, cell] - (shares.mean() if len(shares) else 0)
        torch.testing.assert_close(state["error"][0, cell], kept, rtol=1e-4, atol=1e-5)


def test_momentum_is_masked_only_where_something_is_sent():
    grid, origin = grid_of("steps", fraction=1.0)
    dim = len(origin)
    method = TrueTopK(dim, k=dim, momentum=0.9)
    vector = torch.full((dim,), 1e-3)
    vector[3] = 50.0
    sent, state = method.step(vector, method.init(CPU), 1.0, grid.deliver(grid.start(origin)))
    assert (sent.sparse.values != 0).nonzero().flatten().tolist() == [3]
    assert state["momentum"][3] == 0
    assert (state["momentum"] != 0).sum() == dim - 1


def test_float32_is_no_restriction():
    grid, origin = grid_of("float32")
    assert grid.deliver(grid.start(origin)).exact


@pytest.mark.parametrize("name", GRIDS)
def test_which_updates_fit(name):
    grid, origin = grid_of(name)

    def update(since, to):
        values = Integers(torch.tensor([1])) if name == "steps" else Floats(torch.ones(1))
        return SparseUpdate(len(origin), torch.tensor([0]), values, to, since)

    held = HeldVersion(4, torch.zeros(len(origin), dtype=grid.held_dtype))
    assert grid.fits(None, update(0, 5))
    assert not grid.fits(None, update(3, 5))
    # New values may overwrite newer ones; steps would be added twice.
    assert grid.fits(held, update(3, 5)) == (name != "steps")
    assert grid.fits(held, update(4, 5))
    assert not grid.fits(held, update(5, 6))


@pytest.mark.parametrize("name", GRIDS)
def test_an_update_of_another_kind_or_model_is_refused(name):
    grid, origin = grid_of(name)
    other = Floats(torch.ones(1)) if name == "steps" else Integers(torch.tensor([1]))
    with pytest.raises(TypeError, match="must hold"):
        grid.receive(None, SparseUpdate(len(origin), torch.tensor([0]), other, 1))
    with pytest.raises(ValueError, match="the update is for 3 weights"):
        grid.receive(None, SparseUpdate(3, torch.tensor([0]), other, 1))


@pytest.mark.parametrize("name", GRIDS)
def test_what_a_client_held_is_left_as_it_was(name):
    grid, origin = grid_of(name)
    held = HeldVersion(4, torch.zeros(len(origin), dtype=grid.held_dtype))
    values = Integers(torch.tensor([1])) if name == "steps" else Floats(torch.ones(1))
    after, _ = grid.receive(held, SparseUpdate(len(origin), torch.tensor([2]), values, 5, 4))
    assert after.vector[2] == 1
    assert not held.vector.any()
