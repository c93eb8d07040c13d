"""Discrete noise: by the papers in whole numbers, and by tables; the probabilities are the same."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.special import ive
from scipy.stats import chisquare, kstest

from fetchsgd.privacy import exact, gaussian
from fetchsgd.privacy.source import Source
from fetchsgd.privacy.tables import MOST_VARIANCE, Sampler, distribution

KINDS = ["discrete_gaussian", "skellam"]
VARIANCES = [Fraction(1, 7), Fraction(1), Fraction(23, 3), Fraction(400)]
# A correct sampler fails a test of goodness of fit once in a hundred thousand seeds.
LEAST = 1e-5


def probabilities(kind, variance, numbers):
    v = float(variance)
    if kind == "skellam":
        return ive(np.abs(numbers), v)
    weights = np.exp(-(numbers.astype(float) ** 2) / (2 * v))
    far = np.arange(-2000, 2001, dtype=float)
    return weights / np.exp(-(far**2) / (2 * v)).sum()


def fits(drawn, kind, variance):
    reach = int(4 * float(variance) ** 0.5) + 1
    numbers = np.arange(-reach, reach + 1)
    expected = probabilities(kind, variance, numbers) * len(drawn)
    seen = np.array([(drawn == number).sum() for number in numbers])
    enough = expected >= 5
    rest = len(drawn) - seen[enough].sum(), len(drawn) - expected[enough].sum()
    both = np.append(seen[enough], rest[0]), np.append(expected[enough], rest[1])
    return chisquare(*both, sum_check=False).pvalue > LEAST


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_the_distributions(kind, variance):
    steps, first = distribution(kind, variance, 128)
    found = [(b - a) / 2**128 for a, b in zip([0, *steps], steps, strict=False)]
    numbers = np.arange(first, first + len(steps))
    assert np.allclose(found, probabilities(kind, variance, numbers), rtol=1e-9, atol=1e-30)
    # More bits are the same bits and some more, up to the last place.
    longer, start = distribution(kind, variance, 256)
    ahead = first - start
    same = zip(steps, longer[ahead : ahead + len(steps)], strict=True)
    assert all(abs(step - (more >> 128)) <= 1 for step, more in same)


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_table(kind, variance):
    assert fits(Sampler(kind, variance).draw(200_000, Source.from_seed(0), 1), kind, variance)


@pytest.mark.parametrize(
    ("kind", "variance"), [("discrete_gaussian", VARIANCES[2]), ("skellam", VARIANCES[1])]
)
def test_numbers_in_whole_arithmetic(kind, variance):
    coins = exact.Coins(Source.from_seed(0))
    draw = getattr(exact, kind)
    assert fits(np.array([draw(variance, coins) for _ in range(3000)]), kind, variance)


def test_another_variance_would_be_noticed():
    drawn = Sampler("discrete_gaussian", Fraction(21, 20)).draw(200_000, Source.from_seed(0))
    assert not fits(drawn, "discrete_gaussian", Fraction(1))


class Chosen(Source):
    """Words as told."""

    def words(self, *_):
        return np.array(self.told.pop(0), dtype=np.uint64)


def draw_from(kind, *told):
    source = Chosen(bytes(32))
    object.__setattr__(source, "told", list(told))
    return int(Sampler(kind, Fraction(1)).draw(1, source)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_that_equals_a_step_is_decided_by_the_next(kind):
    steps, first = distribution(kind, Fraction(1), 128)
    at = len(steps) // 2 + 1
    word, low = divmod(steps[at], 2**64)
    assert draw_from(kind, [word], [low - 9]) == first + at
    assert draw_from(kind, [word], [low + 9]) == first + at + 1
    assert draw_from(kind, [word - 1]) == first + at
    assert draw_from(kind, [word + 1]) == first + at + 1
    # Both words equal: a third is needed, and a table of 192 bits.
    finer, start = distribution(kind, Fraction(1), 192)
    third = finer[at + first - start] % 2**64
    assert finer[at + first - start] >> 64 == steps[at]
    assert draw_from(kind, [word], [low], [third - 9]) == first + at
    assert draw_from(kind, [word], [low], [third + 9]) == first + at + 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_and_last_words_reach_beyond_any_table_of_words(kind):
    """They hold all numbers with less than 2^-64 of the probability between them."""
    last, middle = 2**64 - 1, 2**63
    assert draw_from(kind, [last], [middle]) == 1 - draw_from(kind, [0], [middle]) - 1
    assert draw_from(kind, [last], [last - 2**20]) > draw_from(kind, [last], [2**20]) > 8


def test_a_servers_noise_is_normal_and_follows_from_its_key():
    source = Source.from_seed(0)
    drawn = gaussian(torch.Size([200, 501]), 3.0, source, 1)
    assert torch.equal(drawn, gaussian(torch.Size([200, 501]), 3.0, source, 1))
    assert kstest(drawn.flatten().numpy() / 3.0, "norm").pvalue > LEAST
    other = gaussian(torch.Size([200, 501]), 3.0, source, 2)
    # Products of 100,200 pairs, within five of their own deviations: once in two million.
    assert abs((drawn * other).mean()) < 5 * 9 / math.sqrt(drawn.numel())


def test_streams_are_functions_of_their_labels():
    source = Source.from_seed(3)
    one = source.words(5, 1, 2)
    assert (one == source.words(9, 1, 2)[:5]).all()
    for other in (source.words(5, 1), source.words(5, 2, 1), Source.from_seed(4).words(5, 1, 2)):
        assert (one != other).all()
    assert Source.secret().key != Source.secret().key


def test_keys_stay_out_of_logs_and_variances_within_tables():
    key = bytes(range(32))
    assert str(Source(key)) == "Source(...)"
    with pytest.raises(ValueError, match="32 bytes, got 3"):
        Source(b"abc")
    with pytest.raises(ValueError, match="coarser step"):
        Sampler("skellam", Fraction(MOST_VARIANCE + 1))
