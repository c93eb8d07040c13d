import itertools

import pytest

from fetchsgd.sketch.kernels.median import median_network, middle


@pytest.mark.parametrize("rows", range(1, 14))
def test_finds_the_middle_of_every_input_of_zeros_and_ones(rows):
    """By the 0-1 principle the network is then right for every input."""
    lower, upper = middle(rows)
    for bits in itertools.product((0, 1), repeat=rows):
        values = list(bits)
        for i, j in median_network(rows):
            values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
        assert (values[lower], values[upper]) == (sorted(bits)[lower], sorted(bits)[upper])
