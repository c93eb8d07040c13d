"""The mask of the k largest is that of a stable sort, whatever ties and NaN there are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import nothing_waits

from fetchsgd.methods.largest import largest_mask, largest_sum

# Many ties, both zeros, the smallest and largest numbers, and what is not a number.
AWKWARD = [0.0, -0.0, 1.0, -1.0, 2.5, 1e-45, 3.4028235e38, math.inf, -math.inf, math.nan]


def by_stable_sort(vectors, k):
    order = vectors.abs().sort(dim=1, descending=True, stable=True).indices
    return torch.zeros_like(vectors, dtype=torch.bool).scatter_(1, order[:, :k], True)


def check(vectors, k):
    found = largest_mask(vectors, k)
    assert found.dtype == torch.bool
    assert found.sum(dim=1).tolist() == [k] * len(vectors)
    assert torch.equal(found, by_stable_sort(vectors, k))


@pytest.mark.parametrize("k", [1, 2, 500, 999, 1000])
@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("levels", [1, 2, 5, 10**6])
def test_ties_go_to_the_lowest_index(n, k, levels, generator):
    whole = torch.randint(-levels, levels + 1, (n, 1000), generator=generator)
    check(whole.float(), k)


def test_rows_of_zeros_and_rows_of_one_value():
    vectors = torch.zeros(4, 9)
    vectors[1], vectors[2, 6], vectors[3] = 0.5, -3.0, math.nan
    for k in range(1, 10):
        check(vectors, k)


@pytest.mark.parametrize("k", range(1, 8))
def test_nan_is_the_largest_and_all_nan_are_equal(k):
    inf, nan = math.inf, math.nan
    vectors = torch.tensor(
        [
            [1, -inf, nan, 3, inf, -3, nan],
            [nan, nan, nan, nan, 0, nan, nan],
            [inf, 1, inf, inf, -inf, 1, 0],
            [3, 2, 1, nan, 1, 2, 3],
        ]
    )
    vectors.view(torch.int32)[0, 2] = 0x7F800001  # the least of all NaN
    vectors.view(torch.int32)[1, 3] = -1  # the greatest, with a sign
    check(vectors, k)


@given(st.data())
@settings(deadline=None)
def test_as_a_stable_sort_chooses(data):
    dim = data.draw(st.integers(1, 12))
    number = st.sampled_from(AWKWARD) | st.floats(width=32)
    row = st.lists(number, min_size=dim, max_size=dim)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    check(torch.tensor(rows, dtype=torch.float32), data.draw(st.integers(1, dim)))


def test_any_layout_and_nothing_is_written_to(generator):
    vectors = torch.randint(-3, 4, (40, 6), generator=generator).float().t()
    before = vectors.clone()
    check(vectors, 17)
    check(vectors[:, ::3], 5)
    assert torch.equal(vectors, before)


def test_sums_what_is_left_of_each_row():
    vectors = torch.tensor([[1.0, -5, 3, 0], [0, 0, 0, 2]])
    total, nonzero = largest_sum(vectors, torch.tensor([2.0, 10.0]), 2)
    assert total.tolist() == [0, -10, 6, 20]
    assert int(nonzero) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 1000, 60_000, 99_999, 100_000])
def test_gpu_chooses_the_same_without_waiting(k, generator):
    """Also where a row's ties lie beyond what one block of threads sees."""
    vectors = torch.randint(-9, 10, (20, 100_000), generator=generator).float()
    vectors[3, ::7], vectors[4] = math.nan, torch.randn(100_000, generator=generator)
    on_gpu = vectors.cuda()
    with nothing_waits():
        found = largest_mask(on_gpu, k)
        places = torch.nonzero_static(found.flatten(), size=len(vectors) * k)
    assert torch.equal(found.cpu(), by_stable_sort(vectors, k))
    assert torch.equal(places.cpu(), found.cpu().flatten().nonzero())
