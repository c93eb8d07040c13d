"""Sliding windows against an oracle that keeps every gradient.

Seeds are fixed, so the outcome never changes. Where a test is statistical it states the chance with
which correct code would have failed it, had the seeds been drawn at random.
"""

import math
from itertools import pairwise

import pytest
import torch

from fetchsgd import CountSketch
from fetchsgd.sketch.windows import Histogram, Overlapping, Suffixes, most_sketches, survivors
from fetchsgd.theory import Certainty, smallest_table

DIM = 1200
FORMS = {"overlapping": Overlapping, "histogram": lambda s, i: Histogram(s, i, EPS)}
EPS = 0.25
both_forms = pytest.mark.parametrize("form", FORMS)


def make(form, window, sketch):
    return FORMS[form](sketch, window)


def noise(rounds, seed=0, dim=DIM):
    """Gradients of length about 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rounds, dim, generator=generator) / math.sqrt(dim)


def states(form, gradients):
    """After each round, of which nothing was taken out."""
    held = form.init()
    for gradient in gradients:
        held = form.insert(held, form.sketch.sketch(gradient))
        yield held


def last_state(form, gradients):
    *_, last = states(form, gradients)
    return last


def ages_of(held):
    return [age for _, age in held.oldest_first()]


def suffix(gradients, age):
    return gradients[-age:].sum(dim=0)


@both_forms
@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_sketches_are_those_of_the_last_gradients(form, window):
    form = make(form, window, CountSketch(DIM, 3, 64))
    gradients = noise(3 * window + 2)
    for rounds, held in enumerate(states(form, gradients), 1):
        assert held.tables.shape == (form.slots, 3, 64)
        for slot, age in held.oldest_first():
            expected = form.sketch.sketch(suffix(gradients[:rounds], age))
            torch.testing.assert_close(held.tables[slot], expected, rtol=1e-4, atol=1e-5)
        if isinstance(form, Overlapping):
            assert ages_of(held) == list(range(window, 0, -1))
        assert (held.tables[held.ages == 0] == 0).all()


WINDOW, TAU, DELTA = 12, 0.5, 1e-4


@both_forms
@pytest.mark.parametrize("spread", range(1, WINDOW + 1))
def test_spread_signal_is_found(form, spread):
    """A coordinate that is tau-heavy in the sum of the last I' gradients, for every I' <= I.

    The table is theorem 2's: all estimates of all sketches are off by less than `error` |x|, but
    with probability 1e-4. Norms are within 10 % then, but with a far smaller one. For both forms,
    12 windows and 3 seeds that is 0.7 % together.
    """
    loss = 1 if form == "overlapping" else 1 - EPS
    error = loss * TAU / 4
    size = smallest_table(error, Certainty(DIM, 1, DELTA, WINDOW))
    amplitude = 1.1 * TAU / math.sqrt(1 - TAU**2) * math.sqrt(spread)
    for seed in range(3):
        gradients = noise(2 * WINDOW + spread, seed)
        gradients[-spread:, 77] += amplitude / spread
        window = make(form, WINDOW, CountSketch(DIM, size.rows, size.cols, seed))
        found = window.find_heavy(last_state(window, gradients), 100, tau=loss * TAU / 2)
        sums = torch.stack([suffix(gradients, age) for age in range(1, WINDOW + 1)])
        exact = (sums.abs() / sums.norm(dim=1, keepdim=True)).max(dim=0).values
        heavy = (exact >= TAU).nonzero().squeeze(1)
        assert 77 in heavy
        assert torch.isin(heavy, found.indices).all()
        # Shorter sums hold a part of it: with all of I' there, noise takes at most some 0.35.
        assert found.values[found.indices == 77] >= 0.6 * amplitude
        for index, value, age in zip(*found, strict=True):
            whole = suffix(gradients, int(age))
            assert abs(whole[index] - value) <= error * whole.norm()
            assert abs(whole[index]) >= 0.1 * loss * TAU * whole.norm()
    vanilla = window.sketch.sketch(gradients.sum(dim=0) + noise(300, seed=9).sum(dim=0))
    alone = Suffixes(vanilla[None], torch.ones(1))
    assert not len(window.find_heavy(alone, 100, tau=loss * TAU / 2).indices)


@both_forms
def test_signal_older_than_the_window_is_forgotten(form):
    """An estimate of noise has a standard deviation of 1/20 of the norm in a row, and in the median
    of five a smaller one: half of the norm, ten of those, has a chance of 1e-20.
    """
    window = 10
    form = make(form, window, CountSketch(DIM, 5, 400))
    oldest = window if isinstance(form, Overlapping) else math.floor(window * (2 - (1 - EPS) ** 2))
    gradients = noise(60, seed=3)
    gradients[20, 5] += 50.0
    for rounds, held in enumerate(states(form, gradients), 1):
        assert max(ages_of(held)) <= max(oldest, window)
        found = form.find_heavy(held, 20, tau=0.5).indices
        if 20 < rounds <= 20 + window:
            assert found.tolist() == [5]
        elif not 20 < rounds <= 20 + oldest:
            assert not len(found)


NORMS = {  # by age, and by the round of the first gradient
    "all equal": lambda ages, _: [1.0 for _ in ages],
    "as a random walk": lambda ages, _: [math.sqrt(age) for age in ages],
    "all in one direction": lambda ages, _: [float(age) for age in ages],
    "cancelling": lambda ages, _: [1.0 if age % 2 else 1e-3 for age in ages],
    "shrinking": lambda ages, _: [1 / age for age in ages],
    "of all sizes": lambda _, starts: [math.exp(5 * math.sin(37.0 * s * s)) for s in starts],
    "zero": lambda ages, _: [0.0 for _ in ages],
    "not numbers": lambda _, starts: [math.nan if s % 3 else math.inf for s in starts],
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    ("window", "eps"),
    [(1, 0.5), (2, 0.5), (3, 0.9), (40, 0.05), (100, 0.25), (1000, 0.5), (10_000, 0.5)],
)
def test_the_histogram_keeps_its_bounds_whatever_the_norms(window, eps, name):
    most = most_sketches(window, eps)
    assert most <= min(window, 4 + math.log(2 * window) / eps)
    starts = []
    for now in range(2 * window + 50 if window < 10_000 else window + 2000):
        starts.append(now)
        ages = [now - start + 1 for start in starts]
        kept = survivors(ages, NORMS[name](ages, starts), window, eps)
        starts = [starts[place] for place in kept]
        ages = [now - start + 1 for start in starts]
        assert len(ages) <= most
        assert ages[-1] == 1
        assert min(now + 1, window) <= ages[0] <= max(window, window * (2 - (1 - eps) ** 2))
        assert_no_wide_gap(ages, eps)


def assert_no_wide_gap(ages, eps):
    """So that for every I' <= I there is an age from I' to I' / (1 - eps)^2."""
    for older, younger in pairwise(ages):
        assert older == younger + 1 or (1 - eps) ** 2 * older <= younger


@pytest.mark.parametrize(
    ("ages", "norms", "kept"),
    [
        ([3, 2, 1], [1.9, 1.5, 1.0], [0, 2]),
        ([3, 2, 1], [2.1, 1.5, 1.0], [0, 1, 2]),  # norms too far apart
        ([3, 2, 1], [1.0, 0.4, 1.0], [0, 1, 2]),  # the middle one from both
        ([5, 2, 1], [1.0, 1.0, 1.0], [0, 1, 2]),  # ages too far apart
        ([30, 20, 19], [1.0, 1.0, 1.0], [0, 1, 2]),  # the first covers the window
        ([30, 25, 20, 19], [1.0, 1.0, 1.0, 1.0], [1, 2, 3]),  # so does the second
    ],
)
def test_which_of_a_few_sketches_are_kept(ages, norms, kept):
    assert survivors(ages, norms, window=25, eps=0.5) == kept


def test_the_histogram_keeps_the_sketch_that_starts_after_a_burst():
    """Where norms jump ages say little: the rule of Braverman and Ostrovsky keeps both sides."""
    form = Histogram(CountSketch(DIM, 3, 400), 200, 0.5)
    gradients = noise(150)
    gradients[60] *= 1000
    for rounds, held in enumerate(states(form, gradients), 1):
        if rounds > 61:
            assert {rounds - 60, rounds - 61} <= set(ages_of(held))


@pytest.mark.parametrize("window", [1, 4, 50, 300])
def test_a_histogram_of_real_sketches_has_fixed_slots(window):
    form = Histogram(CountSketch(40, 1, 16), window, 0.5)
    for held in states(form, noise(2 * window + 20, dim=40)):
        assert len(held.ages) == form.slots == most_sketches(window, 0.5)
        assert max(ages_of(held)) < 2 * window
        assert_no_wide_gap(ages_of(held), 0.5)


@pytest.mark.parametrize("tau", [0.0, 0.12])
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (1, 70), (3, 40), (5, DIM)])
def test_the_union_is_that_of_all_estimates(rows, k, tau):
    """Of every coordinate the largest estimate that reaches tau, and of those the k largest."""
    sketch = CountSketch(DIM, rows, 100, block=1)
    held = last_state(Overlapping(sketch, 6), noise(9, seed=4))
    estimates = torch.stack([sketch.estimate(table) for table in held.tables])
    norms = torch.tensor([sketch.l2(table) for table in held.tables])
    reached = estimates.abs() >= tau * norms[:, None]
    largest, best = torch.where(reached, estimates.abs(), -1).max(dim=0)
    order = largest.argsort(descending=True, stable=True)[:k]
    expected = order[largest[order] >= 0].sort().values
    found = Overlapping(sketch, 6).find_heavy(held, k, tau)
    assert found.indices.tolist() == expected.tolist()
    assert torch.equal(found.values, estimates[best, torch.arange(DIM)][expected])
    assert torch.equal(found.ages, held.ages[best[expected]])


def test_a_window_of_one_round_is_top_k():
    sketch = CountSketch(DIM, 1, 100)
    window, table = Overlapping(sketch, 1), sketch.sketch(noise(1)[0])
    found = window.find_heavy(window.insert(window.init(), table), 50)
    expected = sketch.top_k(table, 50)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.values, expected.values)


WIDE = CountSketch(60, 3, 60_000, block=1)  # so wide that estimates are exact


@both_forms
@pytest.mark.parametrize("share", [1.0, 0.75, 0.0])
def test_update_takes_what_was_found_out_of_the_gradients_that_hold_it(form, share):
    """The oracle forgets a found coordinate in the last `age` gradients, and keeps the rest.

    What was found but not given counts as part of the newest gradient; coordinates of which nothing
    was given, here all that are even, stay as they are.
    """
    form, gradients = make(form, 7, WIDE), noise(30, seed=5, dim=60)
    held, kept, finds = form.init(), torch.zeros(0, 60), 0
    for gradient in gradients:
        held = form.insert(held, WIDE.sketch(gradient))
        kept = torch.cat([kept, gradient[None]])
        found = form.find_heavy(held, 8, tau=0.3)
        given = torch.where(found.indices % 2 == 0, 0, share * found.values)
        held = form.update(held, found, given)
        for index, value, age, sent in zip(*found, given, strict=True):
            if sent != 0:
                finds += 1
                kept[-int(age) :, index] = 0.0
                kept[-1, index] = value - sent
        for slot, age in held.oldest_first():
            expected = WIDE.sketch(suffix(kept, age))
            torch.testing.assert_close(held.tables[slot], expected, rtol=1e-4, atol=1e-5)
    assert finds > 20 or share == 0


def test_update_as_printed_finds_a_signal_again_and_again():
    """Subtracting S(update) from all, as lines 12 and 14 of appendix B, leaves parts of it."""
    sketch, sent = CountSketch(600, 5, 10_000), {}
    form, gradients = Overlapping(sketch, 8), noise(40, seed=6, dim=600)
    gradients[:, 5] = 0.0
    gradients[10:14, 5] = 0.25
    for rule in ("printed", "ours"):
        held, sent[rule] = form.init(), []
        for gradient in gradients:
            held = form.insert(held, sketch.sketch(gradient))
            found = form.find_heavy(held, 1, tau=0.42)
            sent[rule] += found.values.tolist()
            if rule == "ours":
                held = form.update(held, found)
            else:
                held = Suffixes(held.tables - sketch.sketch(found.vector(600)), held.ages)
    assert sent["ours"] == pytest.approx([1.0], abs=1e-3)
    assert len(sent["printed"]) > 20
    assert {math.copysign(1, value) for value in sent["printed"]} == {1, -1}


@both_forms
def test_noise_does_not_grow_with_t(form):
    """Norms are within 20 % of the root of the age: with 5 x 400 cells that is some 8 deviations
    of one row and more of the median.
    """
    form = make(form, 10, CountSketch(DIM, 5, 400))
    vanilla, held = form.sketch.zeros(), form.init()
    for gradient in noise(400, seed=7):
        table = form.sketch.sketch(gradient)
        held, vanilla = form.insert(held, table), vanilla + table
        for slot, age in held.oldest_first():
            assert form.sketch.l2(held.tables[slot]) <= 1.2 * math.sqrt(age) <= 1.2 * math.sqrt(20)
    assert form.sketch.l2(vanilla) == pytest.approx(math.sqrt(400), rel=0.2)


def test_mistakes_get_a_sentence():
    sketch = CountSketch(10, 1, 5)
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=f"window must be at least 1, got {wrong}"):
            Overlapping(sketch, wrong)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=f"eps must be above 0 and below 1, got {wrong}"):
            Histogram(sketch, 4, wrong)
