"""How a server reads a round's sketch: unbiased over hashes, Bayes' rule, and what lies between."""

import math

import pytest
import torch
from torch.testing import assert_close

from fetchsgd.methods import decoding
from fetchsgd.methods.decoding import BINS, RATE, MeanShares, Prior, Unbiased
from fetchsgd.sketch import CountSketch

DIM, COLS = 240, 60
ROUNDS = 400
CPU = torch.device("cpu")
NO_LIMIT = 1e6


def sketch(dim=DIM, cols=COLS, rows=1, seed=0):
    return CountSketch(dim, rows, cols, seed, 1, hash="permutation")


def normal(dim=DIM, seed=0):
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed))


def variances(dim=DIM, spread=1.5):
    return (spread * normal(dim, seed=1)).exp()


def as_matrix(one):
    """The sketch as a matrix of cells by coordinates."""
    return one.sketch(torch.eye(one.dim))[:, 0].T.double()


def decoded(decoder, gradient, state, rounds=ROUNDS):
    """What is decoded of one gradient under many hashes, with the same state."""
    every = [sketch().for_round(round) for round in range(rounds)]
    return torch.stack([decoder.read(one, one.sketch(gradient), state).estimate for one in every])


def assert_mean(found, expected):
    """Of 240 means none is 5 of its own deviations off: a right program fails once in 5,000."""
    deviation = found.std(dim=0) / math.sqrt(len(found))
    assert ((found.mean(dim=0) - expected).abs() <= 5 * deviation + 1e-6).all()


def test_unbiased_decoding_is_right_on_average_over_hashes():
    gradient = normal()
    found = decoded(Unbiased(NO_LIMIT), gradient, {})
    assert_mean(found, gradient)
    # Cells are balanced, so the noise is dim / cols - 1; it varies by some 8 % from hash to hash.
    noise = (found - gradient).square().sum(dim=1).mean() / gradient.square().sum()
    assert float(noise) == pytest.approx(DIM / COLS - 1, rel=0.03)


def test_its_length_is_known_beforehand():
    """In every round, not only on average: each cell is handed out dim / cols times."""
    gradient = normal()
    for limit in (NO_LIMIT, 1.5):
        one = sketch().for_round(3)
        table = one.sketch(gradient)
        found, learned, *_ = Unbiased(limit).read(one, table, {"momentum": gradient})
        assert learned == {}
        assert float(found.norm() / table.norm()) == pytest.approx(min(limit, 2), rel=1e-5)


@pytest.mark.parametrize("rows", [3, 5])
def test_with_several_rows_the_length_is_measured(rows):
    one = sketch(rows=rows).for_round(1)
    table = one.sketch(normal())
    long = Unbiased(NO_LIMIT).read(one, table, {}).estimate
    assert torch.equal(long, one.estimate(table))
    short = Unbiased(1.0).read(one, table, {}).estimate
    assert float(short.norm()) == pytest.approx(float(table.norm()) / math.sqrt(rows), rel=1e-5)
    assert_close(short / short.norm(), long / long.norm())


def test_a_prior_is_bayes_rule():
    """Of gaussian coordinates with these variances, given the sketch, by linear algebra."""
    variance, one = variances(), sketch().for_round(7)
    gradient = normal() * variance.sqrt()
    table = one.sketch(gradient)
    matrix, prior = as_matrix(one), variance.double().diag()
    gain = prior @ matrix.T @ torch.linalg.inv(matrix @ prior @ matrix.T)
    mean, left = gain @ table[0].double(), (prior - gain @ matrix @ prior).diagonal()
    found, learned, *_ = Prior(0.0).read(one, table, {"variance": variance})  # n = 1
    assert_close(found.double(), mean, rtol=1e-4, atol=1e-6)
    expected = (1 - RATE) * variance + RATE * (mean.square() + left)
    assert_close(learned["variance"].double(), expected, rtol=1e-4, atol=1e-6)


def test_for_many_rounds_a_prior_is_right_on_average():
    """Up to how well 60 cells tell mean shares: a tenth."""
    variance = variances()
    gradient = normal() * variance.sqrt()
    found = decoded(Prior(NO_LIMIT), gradient, {"variance": variance}, 200)
    along = (found.mean(dim=0) @ gradient) / gradient.square().sum()
    assert float(along) == pytest.approx(1, abs=0.1)
    guess = decoded(Prior(0.0), gradient, {"variance": variance}, 50)
    assert float((guess.mean(dim=0) @ gradient) / gradient.square().sum()) < 0.9


def true_shares(variance, rounds):
    every = [sketch().for_round(round) for round in range(rounds)]
    return torch.stack([variance / one.spread(one.fold(variance)) for one in every]).mean(dim=0)


def shares_of(variance, one):
    return MeanShares.of(variance, one.spread(one.fold(variance)))


def at(shares):
    """The share of each coordinate, between the bins."""
    low = shares.places.long()
    upper = (low + 1).clamp(max=BINS - 1)
    return torch.lerp(shares.shares[low], shares.shares[upper], shares.places - low)


def test_mean_shares_may_be_taken_from_some_coordinates(monkeypatch):
    variance, one = variances(6000, 2.0).sort().values, sketch(6000, 1500)
    every = shares_of(variance, one).shares
    monkeypatch.setattr(decoding, "SAMPLE", 600)
    assert_close(shares_of(variance, one).shares, every, rtol=0, atol=0.05)


def test_no_unbiased_gain_has_less_variance():
    """A gain may depend on the cell's sum of variances V; its noise is the mean of gain^2 V."""
    variance = variances()
    every = [sketch().for_round(round) for round in range(100)]
    sums = torch.stack([one.spread(one.fold(variance)) for one in every]).double()

    def moment(gains):
        gains = gains / gains.mean(dim=0)  # unbiased over these hashes
        return (gains.square() * sums).mean(dim=0)

    best = moment(variance / sums)
    others = [(variance / sums) ** power for power in (0.0, 0.5, 0.9, 1.1, 2.0)]
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        nudge = 0.05 * torch.randn(sums.shape, generator=generator, dtype=torch.float64)
        others.append(variance / sums * (1 + nudge))
    for other in others:
        assert (moment(other) >= best * (1 - 1e-12)).all()
    # And by much: the whole cell for everyone is far worse over all.
    assert float(moment(torch.ones_like(sums)).sum()) > 1.5 * float(best.sum())


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_mean_shares_are_those_over_hashes(spread):
    variance = variances(spread=spread)
    known = at(shares_of(variance, sketch().for_round(0)))
    expected = true_shares(variance, 200)
    off = (known - expected).abs() / expected
    # 60 cells are few to take a mean from: a tenth where it matters.
    assert float((off * variance).sum() / variance.sum()) < 0.1


@pytest.mark.parametrize("members", [2, 4])
def test_mean_shares_are_right_where_cells_hold_few(members):
    """A coordinate of two shares with one other, not with half of a cell."""
    dim, rounds = 512, 40
    variance, one = variances(dim, 2.0), sketch(dim, dim // members)
    known = [at(shares_of(variance, one.for_round(round))) for round in range(rounds)]
    expected = [
        variance / (now := one.for_round(round)).spread(now.fold(variance))
        for round in range(rounds)
    ]
    off = torch.stack(known).mean(dim=0) - torch.stack(expected).mean(dim=0)
    # Each is a mean over 40 cells, off by some 0.05; all of them together are not.
    assert float(off.mean().abs()) < 0.01
    assert float((off * variance).sum() / variance.sum()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("limit", [1.0, 1.2, 1.5, 2.0, NO_LIMIT])
def test_what_is_decoded_is_as_long_as_allowed_and_no_longer(limit):
    variance = variances()
    for round in range(10):
        one = sketch().for_round(round)
        table = one.sketch(normal(seed=round) * variance.sqrt())
        lengths = {}
        for most in (0.0, limit, NO_LIMIT):
            found = Prior(most).read(one, table, {"variance": variance}).estimate
            lengths[most] = float(found.norm() / table.norm())
        assert lengths[0.0] <= 1
        assert lengths[limit] <= limit * (1 + 1e-5)
        # n grows in steps of an eighth, and a step of n lengthens by at most as much.
        assert lengths[limit] >= min(limit * math.exp(-0.25), lengths[NO_LIMIT])


def test_gains_are_the_least_bias_for_the_noise():
    """Lagrange: the derivative of v (1 - a)^2 + a^2 noise / n vanishes at the gain."""
    variance, one = variances(), sketch().for_round(2)
    known = shares_of(variance, one)
    share = at(known).double()
    guess = torch.ones(DIM)
    for limit in (2.0, 4.0):
        scale, horizon = known.widened(guess, limit**2 * guess.square().sum())
        gain = share / scale.double()  # w / share is unbiased, and of that so much is taken
        noise = variance * (1 - share) / share  # of the unbiased one: v / s - v
        n = gain * noise / (variance * (1 - gain))
        assert_close(n, n[0].expand(DIM), rtol=1e-3, atol=0)
        assert float(n[0]) == pytest.approx(math.exp(horizon), rel=1e-3)
        assert float(horizon) > 0


def test_the_first_round_knows_nothing():
    one = sketch().for_round(0)
    table, flat = one.sketch(normal()), torch.full((DIM,), 0.25)
    decoder = Prior(NO_LIMIT)
    first, learned, *_ = decoder.read(one, table, decoder.init(DIM, CPU))
    assert_close(first, decoder.read(one, table, {"variance": flat}).estimate)
    assert_close(first, one.estimate(table), rtol=1e-3, atol=1e-4)  # shares of 1/4, divided by it
    assert float(learned["variance"].min()) > 0


def test_variances_are_learned():
    """Ten of 240 coordinates are large, always the same: after 200 rounds they stand out."""
    true = torch.ones(DIM) * 0.01
    true[:10] = 25.0
    decoder, errors = Prior(2.5), []
    state = decoder.init(DIM, CPU)
    for round in range(200):
        one = sketch().for_round(round)
        gradient = normal(seed=round + 10) * true.sqrt()
        found, state, *_ = decoder.read(one, one.sketch(gradient), state)
        errors.append(float((found - gradient).square().sum() / gradient.square().sum()))
    assert float(state["variance"][:10].min()) > 20 * float(state["variance"][10:].mean())
    assert sum(errors[-20:]) < 0.3 * sum(errors[:20])


@pytest.mark.parametrize("decoder", [Prior(2.0), Unbiased(2.0)], ids=str)
def test_the_same_twice_and_nothing_is_overwritten(decoder):
    one, state = sketch().for_round(4), {"variance": variances()}
    table = one.sketch(normal())
    kept = table.clone(), state["variance"].clone()
    first, second = (decoder.read(one, table, state) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])
    assert torch.equal(table, kept[0])
    assert torch.equal(state["variance"], kept[1])


@pytest.mark.parametrize("decoder", [Prior(2.0), Unbiased(2.0)], ids=str)
def test_what_has_diverged_stays_visible_and_nothing_gives_nothing(decoder):
    one = sketch().for_round(4)
    state = decoder.init(DIM, CPU)
    nothing, learned, *_ = decoder.read(one, torch.zeros(1, COLS), state)
    assert (nothing == 0).all()
    table = torch.ones(1, COLS)
    table[0, 3] = math.nan
    assert decoder.read(one, table, learned).estimate.isnan().any()
