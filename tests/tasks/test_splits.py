"""Splits: every example goes to one client; class mixtures and sizes are as asked for."""

import hashlib

import numpy as np
import pytest

from fetchsgd.errors import UserError
from fetchsgd.randomness import numpy_generator
from fetchsgd.runs.settings import resolve
from fetchsgd.tasks.digits import digits
from fetchsgd.tasks.splits import SIZES, SPLITS, Split, power_law

# 10 classes, the smallest with 200 examples and the largest with 650.
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), np.arange(200, 700, 50)))


def settings(split="one_class", per_client=5, alpha=0.5, sizes="equal", exponent=1.5):
    return Split(split, per_client, alpha, sizes, exponent, most=1000)


def dealt(labels=LABELS, seed=0, **given):
    return settings(**given).clients(labels, numpy_generator(seed, "split", 1))


def classes_of(client_of, labels=LABELS):
    """How many examples of each class each client holds."""
    table = np.zeros((client_of.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (client_of, labels), 1)
    return table


@pytest.mark.parametrize(
    ("seed", "per_client", "split", "digest"),
    [
        (0, 2, "one_class", "bce5765ec61e66ae"),
        (0, 2, "iid", "5b7fc3527415f023"),
        (0, 5, "one_class", "e5c49fbc366ce31b"),
        (0, 5, "iid", "14229dba36d5b437"),
        (7, 2, "one_class", "cdecb46ef0657a1a"),
        (7, 5, "iid", "317076fe92a85f8c"),
    ],
)
def test_the_clients_of_digits_are_those_of_our_first_results(seed, per_client, split, digest):
    """Digests of commit a1c2ca1, before splits had other settings."""
    train = digits(seed, per_client, split).train
    found = hashlib.sha256()
    for part in (train.inputs.numpy(), train.targets.numpy(), train.offsets):
        found.update(part.tobytes())
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("split", SPLITS)
def test_no_client_is_empty_and_the_seed_decides(split, sizes):
    client_of = dealt(split=split, sizes=sizes)
    assert client_of.shape == LABELS.shape
    assert (np.bincount(client_of) > 0).all()
    np.testing.assert_array_equal(client_of, dealt(split=split, sizes=sizes))
    assert (client_of != dealt(split=split, sizes=sizes, seed=1)).any()


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_equal_sizes(split):
    """4,250 examples are 607 clients with seven and one with the single one that is left."""
    np.testing.assert_array_equal(np.bincount(dealt(split=split, per_client=7)), [7] * 607 + [1])


@pytest.mark.parametrize("sizes", SIZES)
def test_one_class_is_one_class(sizes):
    assert ((classes_of(dealt(sizes=sizes)) > 0).sum(axis=1) == 1).all()


# --- Dirichlet


def test_a_tiny_alpha_is_one_class_and_a_huge_one_iid():
    """Where a class runs out its last client turns to another: at most once a class.

    The very last client has what the others left, whatever that is.
    """
    one_sided = classes_of(dealt(split="dirichlet", alpha=1e-9, per_client=10))
    assert (one_sided.max(axis=1) < one_sided.sum(axis=1)).sum() <= 10
    even = classes_of(dealt(split="dirichlet", alpha=1e9, per_client=425))
    shares = np.bincount(LABELS) / len(LABELS)
    # 90 counts with deviations below 8: one of them is off by 40 less than once in 10^4 seeds.
    assert np.abs(even[:-1] - 425 * shares).max() < 40


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_clients_are_as_one_sided_as_the_dirichlet(alpha):
    """Two examples of a client share their class with chance (1 + alpha * sum p^2) / (1 + alpha).

    Only the first clients are asked, for whom no class has run out. Their mean over 1,000 mixtures
    has a deviation below 0.012; a correct program is off by 0.06 less than once in 10^6 seeds.
    """
    labels = np.repeat(np.arange(10), 10_000)
    per_client = 20
    table = classes_of(dealt(labels, split="dirichlet", alpha=alpha, per_client=per_client), labels)
    pairs = (table * (table - 1)).sum(axis=1) / (per_client * (per_client - 1))
    assert pairs[:1000].mean() == pytest.approx((1 + alpha / 10) / (1 + alpha), abs=0.06)


def test_labels_need_not_be_numbered_from_zero():
    labels = np.array([3, 3, 9, 9, 9, 40])
    client_of = dealt(labels, split="dirichlet", per_client=2)
    np.testing.assert_array_equal(np.bincount(client_of), [2, 2, 2])


# --- power law


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.0])
def test_sizes_follow_the_power_law(exponent):
    """Chances of s^-exponent up to the least bound for which the mean reaches 4.

    The statistic is a chi-square over the sizes of which we expect at least ten; a correct program
    exceeds its mean by seven deviations less than once in 10^4 seeds.
    """
    drawn = power_law(100_000, numpy_generator(0, "split"), per_client=4, exponent=exponent)
    assert drawn.sum() == 100_000
    assert drawn.min() >= 1
    bound, mean = 0, 0.0
    while mean < 4:
        bound += 1
        sizes = np.arange(1, bound + 1)
        chances = sizes**-exponent / (sizes**-exponent).sum()
        mean = sizes @ chances
    free = drawn[:-1]  # the last one has what is left
    assert free.max() <= bound
    expected = len(free) * chances
    counts = np.bincount(free, minlength=bound + 1)[1:]
    seen = expected >= 10
    statistic = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert statistic < seen.sum() + 7 * np.sqrt(2 * seen.sum())


def test_a_mean_that_no_bound_reaches_is_a_sentence():
    with pytest.raises(ValueError, match="task.examples_per_client = 5 is out of reach: sizes up "
                       "to 1000 .* task.exponent = 3 have a mean of 1.37"):  # fmt: skip
        power_law(1000, numpy_generator(0, "split"), per_client=5, exponent=3.0)


# --- settings


def test_reachable_as_settings_of_a_task():
    given = ["split=dirichlet", "alpha=1", "sizes=power_law", "exponent=1.2"]
    config = resolve({"task": {"name": "digits", "examples_per_client": 4}}, given)
    assert config.settings["task"]["alpha"] == 1.0
    assert len(set(config.task.train.sizes)) > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "by_hand"}, "task.split must be one of one_class, iid, dirichlet, got 'by_h"),
        ({"sizes": "huge"}, "task.sizes must be one of equal, power_law, got 'huge'"),
        ({"alpha": 0}, "task.alpha must be above 0, got 0.0"),
        ({"exponent": -1.5}, "task.exponent must be above 0, got -1.5"),
        ({"exponent": float("nan")}, "task.exponent must be a number, got nan"),
        ({"examples_per_client": 101}, "task.examples_per_client must be from 1 to 100, got 101"),
        ({"sizes": "power_law", "examples_per_client": 1}, "at least 2, got 1"),
        ({"sizes": "power_law", "examples_per_client": 90}, "is out of reach"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "digits", **options}})
