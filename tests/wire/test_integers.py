"""Bucket symbols are those of the page."""

import numpy as np
from wire.buckets import integers, on_the_page

from fetchsgd.wire.integers import symbols_of


def test_bucket_symbols_are_those_of_the_page():
    values = integers(64)
    assert symbols_of(np.array(values)).tolist() == [on_the_page(value) for value in values]
