import pytest

from fetchsgd.server.schedule import Schedule


def rates(schedule, steps, epochs):
    return [schedule.rate(step, steps, epochs) for step in range(steps)]


def test_triangular_peaks_at_the_pivot():
    found = rates(Schedule("triangular", 0.3, 5.0), 2400, 24.0)
    assert max(found) == pytest.approx(0.3, rel=1e-2)
    assert found.index(max(found)) in (499, 500)
    assert found[0] < 0.001
    assert found[-1] < 0.001
    # Straight lines: the mean is half the peak.
    assert sum(found) / len(found) == pytest.approx(0.15, rel=1e-3)


def test_fewer_rounds_go_through_the_same_schedule():
    schedule = Schedule("triangular", 0.3, 5.0)
    short, long = rates(schedule, 240, 24.0), rates(schedule, 2400, 24.0)
    for step, rate in enumerate(short):
        assert rate == pytest.approx((long[10 * step + 4] + long[10 * step + 5]) / 2, abs=2e-3)


def test_linear_and_constant():
    assert rates(Schedule("linear", 1.0), 4, 1.0) == pytest.approx([0.875, 0.625, 0.375, 0.125])
    assert rates(Schedule("constant", 0.2), 3, 1.0) == pytest.approx([0.2] * 3)


def test_piecewise_joins_points_and_stays_at_the_ends():
    schedule = Schedule("piecewise", points=[[1, 0.0], [2, 1.0], [3, 0.5]])
    assert schedule.rate(0, 8, 4.0) == 0.0  # epoch 0.25
    assert schedule.rate(2, 8, 4.0) == pytest.approx(0.25)  # epoch 1.25
    assert schedule.rate(4, 8, 4.0) == pytest.approx(0.875)  # epoch 2.25
    assert schedule.rate(7, 8, 4.0) == 0.5


@pytest.mark.parametrize("pivot", [0.0, 24.0])
def test_a_pivot_at_either_end(pivot):
    found = rates(Schedule("triangular", 0.3, pivot), 100, 24.0)
    assert all(0 <= rate <= 0.3 for rate in found)
