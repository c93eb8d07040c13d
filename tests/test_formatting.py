"""Numbers as people read them, at the places where rounding changes their length or unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.formatting import (
    format_bytes,
    format_clock,
    format_duration,
    format_metric,
    format_ratio,
    plural,
)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "–"), (1.0, "1×"), (3.744, "3.74×"), (99.97, "100×"), (1240.4, "1,240×"),
        (0.5, "0.5×"), (0.00123, "0.0012×"),
    ],
)  # fmt: skip
def test_ratios(ratio, text):
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1234.5, "1.23 kB"),
        (999_999, "1 MB"), (999_700_000, "1 GB"), (16_200_000_000, "16.2 GB"),
        (10**15, "1 PB"), (10**18, "1,000 PB"),
    ],
)  # fmt: skip
def test_bytes(count, text):
    assert format_bytes(count) == text


@given(st.integers(1, 10**17))
def test_bytes_are_off_by_half_of_the_third_digit_at_most(count):
    number, unit = format_bytes(count).split()
    shown = float(number.replace(",", "")) * 1000.0 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(
        unit
    )
    assert shown == pytest.approx(count, rel=0.00501)


def test_seconds():
    assert [format_duration(seconds) for seconds in (4.25, 612, 7500)] == (
        ["4.25 s", "10 min", "2 h 05 min"]
    )
    assert [format_clock(seconds) for seconds in (0, 4.25, 59.6, 612, 3599.7, 7500)] == (
        ["0:00", "0:04", "1:00", "10:12", "1:00:00", "2:05:00"]
    )


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (None, "accuracy", "–"),
        (0.9135, "accuracy", "91.35 %"),
        (0.0123, "f1", "0.01230"),
        (0.000012345, "squared_error", "1.234e-05"),
        (0.99996, "f1", "1.000"),
        (-0.5, "likelihood", "-0.5000"),
        (0.0, "squared_error", "0"),
        (21.0, "perplexity", "21.00"),
        (123.456, "perplexity", "123.5"),
        (999.96, "perplexity", "1,000"),
        (12345.6, "perplexity", "12,346"),
        (1e20, "perplexity", "1.000e+20"),
    ],
)
def test_metrics(value, metric, text):
    assert format_metric(value, metric) == text


@given(st.floats(1e-300, 1e300), st.sampled_from([1, -1]))
def test_no_metric_loses_its_first_four_digits(size, sign):
    shown = float(format_metric(sign * size, "other").replace(",", ""))
    assert math.isclose(shown, sign * size, rel_tol=0.000501)


def test_plurals():
    assert [plural(number, "run") for number in (0, 1, 2, 1000)] == (
        ["0 runs", "1 run", "2 runs", "1,000 runs"]
    )
