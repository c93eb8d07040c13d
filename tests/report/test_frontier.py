"""The laws of the frontier, against the definition itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.report.groups import frontier

# Few values, so that ties are common.
points = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.5, 10.0, 80.0]), st.integers(0, 6)))


def beats(one, other, sign):
    quality, worse = sign * one[1], sign * other[1]
    return one[0] >= other[0] and quality >= worse and (one[0], quality) != (other[0], worse)


@given(points, st.booleans())
def test_equals_the_definition(points, higher_is_better):
    sign = 1 if higher_is_better else -1
    expected = {
        index
        for index, point in enumerate(points)
        if not any(beats(other, point, sign) for other in points)
    }
    assert set(frontier(points, higher_is_better)) == expected


@given(points)
def test_quality_falls_as_compression_grows(points):
    front = [points[index] for index in frontier(points)]
    assert front == sorted(front, key=lambda point: (point[0], -point[1]))
    assert [value for _, value in front] == sorted((v for _, v in front), reverse=True)


@given(points)
def test_the_frontier_of_the_frontier_is_itself(points):
    front = [points[index] for index in frontier(points)]
    assert frontier(front) == list(range(len(front)))


@given(points)
def test_lower_is_better_is_higher_is_better_upside_down(points):
    flipped = [(compression, -value) for compression, value in points]
    assert frontier(points, higher_is_better=False) == frontier(flipped)


@given(points.filter(bool))
def test_the_best_value_and_the_highest_compression_are_on_it(points):
    front = [points[index] for index in frontier(points)]
    assert max(value for _, value in front) == max(value for _, value in points)
    assert max(ratio for ratio, _ in front) == max(ratio for ratio, _ in points)
