"""One step per message: every kernel gives the bits of the reference, whatever the numbers are."""

import math
from fractions import Fraction

import pytest
import torch
from awkward import awkward, normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fetchsgd.quantisers.kernels import reference
from fetchsgd.quantisers.step_layout import CHUNK, MOST_LEVEL, level_type, num_chunks

KEY = 0x1234_5678_9ABC_DEF0
STREAMS = torch.tensor([0, 3, (1 << 62) + 5, 1 << 31, 7])
COUNTS = [1, 255, 256, 257, 1000, CHUNK, CHUNK + 1]
floats = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
positive = st.floats(2.0**-100, 2.0**100, width=32).map(lambda x: float(torch.tensor(x).bfloat16()))
# Triton's interpreter computes with numpy, which warns.
overflows = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")


def equal(got, expected):
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class TestKernelsEqualTheReference:
    @pytest.mark.parametrize("count", COUNTS)
    def test_squares(self, ours, count):
        cells = normal(3, count) ** 5
        cells[1] *= 1e-30
        assert equal(ours.add_squares(cells), reference.add_squares(cells))

    @pytest.mark.parametrize("dtype", MOST_LEVEL, ids=str)
    @pytest.mark.parametrize("count", [1, 257, 5001])
    def test_levels(self, ours, count, dtype):
        cells = normal(5, count) ** 3
        steps = torch.tensor([8.0, 0.01, 0.0, 1e-4, math.inf])
        got = ours.round_places(cells, steps, dtype, KEY, STREAMS)
        assert got.dtype == dtype
        assert torch.equal(got, reference.round_places(cells, steps, dtype, KEY, STREAMS))
        assert not got[[2, 4]].any()

    @overflows
    def test_awkward_cells(self, ours):
        cells = awkward()
        assert equal(ours.add_squares(cells), reference.add_squares(cells))
        finite = cells.nan_to_num(0, 0, 0)
        for step in (1.0, 2.0**-100, 3.3895314e38, 1e-30):
            arguments = (finite, torch.tensor([step]), torch.int32, KEY, STREAMS[:1])
            got = ours.round_places(*arguments)
            assert torch.equal(got, reference.round_places(*arguments))

    @pytest.mark.parametrize("dtype", MOST_LEVEL, ids=str)
    def test_sums(self, ours, dtype):
        for n, count in ((0, 10), (1, 257), (5, 3000), (3, 0)):
            levels = (normal(n, count) * 30).to(dtype)
            steps = normal(n, seed=1)
            got, expected = ours.sum_levels(levels, steps), reference.sum_levels(levels, steps)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
            assert torch.equal(ours.sum_levels(levels, steps), got)
            if n == 1:
                assert torch.equal(got, expected)

    def test_nothing_at_all(self, ours):
        for n, count in ((0, 10), (2, 0)):
            cells = torch.zeros(n, count)
            assert ours.add_squares(cells)[0].shape == (n, num_chunks(count))
            levels = ours.round_places(cells, torch.ones(n), torch.int8, 1, STREAMS[:n])
            assert levels.shape == (n, count)

    @overflows
    # The fixture holds nothing that an example could change.
    @settings(
        max_examples=40,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(row=st.lists(floats, min_size=1, max_size=300), step=positive, key=st.integers(0, 9))
    def test_any_numbers(self, ours, row, step, key):
        cells = torch.tensor([row], dtype=torch.float32)
        assert equal(ours.add_squares(cells), reference.add_squares(cells))
        if cells.isfinite().all():
            arguments = (cells, torch.tensor([step]), torch.int32, key, STREAMS[:1])
            got = ours.round_places(*arguments)
            assert torch.equal(got, reference.round_places(*arguments))


@given(row=st.lists(floats.filter(math.isfinite), min_size=1, max_size=50))
def test_squares_are_those_of_fractions(row):
    """Exact but for what lies 24 bits below the largest."""
    cells = torch.tensor([row], dtype=torch.float32)
    sums, sizes = reference.add_squares(cells)
    exponent = max(int(sizes[0, 0]) >> 23, 1) - 150
    got = Fraction(int(sums[0, 0])) * Fraction(2) ** (2 * exponent)
    expected = sum(Fraction(x) ** 2 for x in cells[0].tolist())
    assert 0 <= expected - got <= len(row) * Fraction(2) ** (2 * exponent + 25)


@pytest.mark.parametrize(("count", "tau", "dtype"), [
    (85_066, 8, torch.int8), (6_573_130, 8, torch.int16), (6_573_130, 32, torch.int8),
    (124 * 10**6, 0.01, torch.int32), (1, 1, torch.int8),
])  # fmt: skip
def test_type_of_levels(count, tau, dtype):
    assert level_type(count, tau) == dtype
