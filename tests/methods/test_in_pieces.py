"""A step in pieces and in place does what a step does."""

import pytest
import torch

from fetchsgd.methods import FetchSGD, in_pieces, reading_pieces
from fetchsgd.methods.in_pieces import Largest, put_rounded
from fetchsgd.server.grids import Float16Grid, Float32Grid, StepGrid
from fetchsgd.server.ledger import Ledger
from fetchsgd.server.rounds import Merged, Training, after_round

CPU = torch.device("cpu")
DIM = 5_011


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(in_pieces, "PIECE", {"cpu": 1000})


def gradients(method, rounds):
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(DIM, generator=generator) ** 4
    for t in range(rounds):
        yield method.message.compress(spread * torch.randn(DIM, generator=generator), t)


def started(method):
    """Without ties: with a flat prior all coordinates of a cell are equal."""
    state = method.init(CPU)
    if "variance" in state:
        state["variance"] = torch.linspace(0.1, 1.0, DIM).square()
    return state


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"revisit": 3.0, "nesterov": True},
        {"mask_momentum": False},
        {"decode": "unbiased", "rows": 3},
        {"hash": "fixed", "rows": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("grid", [Float32Grid, Float16Grid])
def test_sends_and_keeps_what_a_step_does(options, grid):
    method = FetchSGD(dim=DIM, k=100, cols=500, **options)
    deliver = grid((DIM,), torch.zeros(DIM)).deliver(grid((DIM,), None).start(torch.zeros(DIM)))
    plain, own = started(method), started(method)
    for t, table in enumerate(gradients(method, 3)):
        sent, plain = method.step(table, plain, 0.1, deliver, round=t)
        also, after = method.overwriting_step(table, own, 0.1, deliver, round=t)
        if method.is_fresh:
            assert after is own
        own = after
        assert torch.equal(also.sparse.indices, sent.sparse.indices)
        torch.testing.assert_close(also.sparse.values, sent.sparse.values, rtol=1e-3, atol=1e-4)
    assert own.keys() == plain.keys()
    for name, part in plain.items():
        torch.testing.assert_close(own[name], part, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"decode": "unbiased"}, {"decode": "unbiased", "rows": 3, "noise_limit": 1.0}],
    ids=str,
)
@pytest.mark.parametrize("grid", [Float32Grid, StepGrid])
def test_without_k_too(grid, options):
    method = FetchSGD(dim=DIM, k=0, cols=500, **options)
    origin = torch.linspace(-1, 1, DIM)
    deliver = grid((DIM,), origin).deliver(grid((DIM,), origin).start(origin))
    plain, own = started(method), started(method)
    for t, table in enumerate(gradients(method, 3)):
        sent, plain = method.step(table, plain, 0.1, deliver, round=t)
        also, own = method.overwriting_step(table, own, 0.1, deliver, round=t)
        torch.testing.assert_close(also.dense, sent.dense, rtol=1e-3, atol=1e-4)
    for name in ("momentum", "error"):
        torch.testing.assert_close(own[name], plain[name], rtol=1e-3, atol=1e-3)


def test_what_is_chosen_and_not_sent_stays_as_it_was():
    """On a grid of steps most of the k are too small: their momentum and when they were sent."""
    method = FetchSGD(dim=DIM, k=100, cols=500, revisit=3.0)
    origin = torch.linspace(-1, 1, DIM)
    grid = StepGrid((DIM,), origin, step=1.0)
    deliver = grid.deliver(grid.start(origin))
    plain, own = started(method), started(method)
    counts = []
    for t, table in enumerate(gradients(method, 3)):
        before = plain["sent"]
        sent, plain = method.step(table, plain, 0.2, deliver, round=t)
        method.overwriting_step(table, own, 0.2, deliver, round=t)
        moved, chosen = sent.sparse.values != 0, sent.sparse.indices
        counts.append(int(moved.sum()))
        for state in (plain, own):
            assert torch.equal(state["momentum"][chosen] == 0, moved)
            assert torch.equal(state["sent"][chosen], before[chosen].masked_fill(moved, t))
    assert 0 < sum(counts) < 300


def test_a_prior_is_flat_at_first():
    method = FetchSGD(dim=DIM, k=100, cols=500)
    [table] = gradients(method, 1)
    _, plain = method.step(table, method.init(CPU), 0.1)
    _, own = method.overwriting_step(table, method.init(CPU), 0.1)
    torch.testing.assert_close(own["variance"], plain["variance"])


def test_a_sample_is_enough_for_the_horizon(monkeypatch):
    method = FetchSGD(dim=DIM, k=100, cols=250)
    [table] = gradients(method, 1)
    sketch = method.sketch.for_round(0)
    horizons = []
    for sampled in (DIM, 1000):
        monkeypatch.setattr(reading_pieces, "SAMPLED", sampled)
        cells = reading_pieces.PriorCells.of(sketch, table, started(method)["variance"])
        horizons.append(cells.horizon(2.5))
    assert horizons[0] > 0
    assert abs(horizons[1] - horizons[0]) <= 0.5


def test_mean_shares_are_taken_from_coordinates_and_their_own_cells(monkeypatch):
    method = FetchSGD(dim=DIM, k=100, cols=2500)
    [table] = gradients(method, 1)
    known = []
    for sample in (DIM, 300):
        monkeypatch.setattr(reading_pieces, "SAMPLE", sample)
        variance = started(method)["variance"]
        known.append(reading_pieces.PriorCells.of(method.sketch, table, variance).shares)
    torch.testing.assert_close(known[1], known[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("size", [1, 7, 50, 100, 1000])
def test_the_largest_are_those_of_lowest_index_among_equals(size):
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randint(0, 20, (1000,), generator=generator).float()
    found = Largest(100)
    for first in range(0, 1000, size):
        found.add(first, numbers[first : first + size])
    expected = numbers.sort(descending=True, stable=True).indices[:100].sort().values
    assert torch.equal(found.taken(), expected)


def test_sixteen_bits_are_right_on_average():
    """Of 2^16 equal numbers: five standard deviations of the mean are a chance of 6e-7."""
    value, count = 1.0 + 1 / 3000, 1 << 16
    into = torch.empty(count, dtype=torch.bfloat16)
    put_rounded(into, torch.full((count,), value), torch.Generator().manual_seed(0))
    assert set(into.tolist()) == {1.0, 1.0 + 2**-7}
    deviation = 2**-7 * ((value - 1) * 2**7 * (1 - (value - 1) * 2**7)) ** 0.5 / count**0.5
    assert abs(float(into.double().mean()) - value) < 5 * deviation
    exact = torch.tensor([0.0, -2.5, torch.inf, -torch.inf])
    put_rounded(into[:4], exact, torch.Generator().manual_seed(0))
    assert torch.equal(into[:4].float(), exact)
    put_rounded(into[:1], torch.tensor([torch.nan]), torch.Generator().manual_seed(0))
    assert into[0].isnan()


def test_every_round_rounds_anew():
    """A number that is always rounded by the same draw always goes the same way."""
    method = FetchSGD(dim=DIM, k=1, cols=DIM, state_bits=16)  # no two share a cell
    start = {name: torch.ones_like(part) for name, part in method.init(CPU).items()}
    ends = [method.step(torch.zeros(1, DIM), start, 0.001, round=round)[1] for round in (4, 5, 4)]
    for name, part in ends[0].items():
        assert part.unique().numel() > 1
        assert not torch.equal(part, ends[1][name]), name
        assert torch.equal(part, ends[2][name]), name


def test_a_state_of_sixteen_bits_trains_as_well():
    """A quadratic, whose optimum a server reaches from what it carries; `step` is pure."""
    target = torch.linspace(-1, 1, 200)
    left = {}
    for bits in (32, 16):
        method = FetchSGD(dim=200, k=40, cols=100, state_bits=bits)
        state, weights = method.init(CPU), torch.zeros(200)
        for t in range(60):
            before = {name: part.clone() for name, part in state.items()}
            table = method.message.compress(weights - target, t)
            sent, after = method.step(table, state, 0.05, round=t)
            assert all(torch.equal(state[name], part) for name, part in before.items())
            state, weights = after, weights - sent.sparse.to_dense()
        assert {part.dtype.itemsize * 8 for part in state.values()} == {bits}
        left[bits] = float((weights - target).norm() / target.norm())
    assert left[32] < 0.2
    assert left[16] < 1.2 * left[32] + 0.02


@pytest.mark.parametrize("grid", [Float32Grid, Float16Grid, StepGrid])
def test_a_round_may_overwrite_the_last(grid):
    method = FetchSGD(dim=DIM, k=100, cols=500, hash="fixed")
    origin = torch.linspace(-1, 1, DIM)
    rule = grid((DIM,), origin)
    ends = []
    for overwrite in (False, True):
        ledger = Ledger.new(DIM, 10, 5, rule.downloads(), CPU)
        training = Training(0, rule.start(origin.clone()), method.init(CPU), ledger)
        first = training.weights
        for table in gradients(method, 4):
            merged = Merged(table, torch.arange(3).numpy(), 0, 0.0, torch.zeros(()))
            training = after_round(training, merged, 0.1, method, rule, overwrite=overwrite)
        assert (training.weights is first) == overwrite
        ends.append(training)
    plain, own = ends
    assert torch.equal(plain.weights, own.weights)
    assert torch.equal(plain.place.steps, own.place.steps)
    assert torch.equal(plain.ledger.changed, own.ledger.changed)
