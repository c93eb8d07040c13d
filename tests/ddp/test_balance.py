"""Tensors of like size: the noise that was worked out, and sizes that are not known yet."""

import pytest
import torch

from fetchsgd.ddp import Settings
from fetchsgd.ddp.balance import mean_squares, next_size, scales


@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_the_noise_of_a_table_is_as_worked_out(balance, generator):
    """Two tensors, the second a hundred times smaller; 40 hashes, 600 cells."""
    counts, sizes = torch.tensor([3000, 2000]), torch.tensor([1.0, 1e-4])
    parts = [
        torch.randn(3000, generator=generator),
        0.01 * torch.randn(2000, generator=generator),
    ]
    settings, each = Settings(50.0, "float32"), scales(sizes, balance)
    found = torch.zeros(2)
    for step in range(40):
        sketch = settings.sketch(5000, step, 0)
        table = sketch.sketch([part / scale for part, scale in zip(parts, each, strict=True)])
        read = sketch.estimate(table).split([3000, 2000])
        for at in range(2):
            found[at] += (read[at] * each[at] - parts[at]).square().mean() / 40
    shared = (counts * sizes / each**2).sum() / settings.sketch(5000, 0, 0).cols
    # Means of 40 x 2000 squares and more, of which those in a cell go together: within 10 %. The
    # formula counts a weight's own part as noise, which is one in 50.
    assert torch.allclose(found, each**2 * shared, rtol=0.12)


def test_half_a_balance_has_the_least_noise_of_all():
    counts, sizes = torch.tensor([300.0, 2000.0, 50.0]), torch.tensor([1.0, 1e-4, 30.0])

    def noise(balance):
        square = scales(sizes, balance) ** 2
        return float((counts * square).sum() * (counts * sizes / square).sum())

    assert min((0.0, 0.25, 0.5, 0.75, 1.0), key=noise) == 0.5


def test_tensors_without_a_size_count_as_the_smallest():
    assert scales(torch.tensor([4.0, 0.0, 16.0]), 1.0).tolist() == [2.0, 2.0, 4.0]
    assert scales(torch.zeros(2), 0.5).tolist() == [1.0, 1.0]


def test_sizes_follow_gradients():
    size = mean_squares([torch.full((3, 2), 2.0), torch.zeros(4, dtype=torch.bfloat16)])
    assert size.tolist() == pytest.approx([4.0, 0.0])
    assert next_size(torch.zeros(2), size).tolist() == pytest.approx([4.0, 0.0])
    assert next_size(torch.ones(2), size).tolist() == pytest.approx([1.3, 0.9])
