"""Sums of levels are exact, and the step finds its size."""

import pytest
import torch

from fetchsgd.ddp.levels import ROOM, Levels
from fetchsgd.errors import UserError


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("cols", [1, 2, 9])
def test_sums_of_extremes_are_exact(bits, world, cols):
    levels, step = Levels(bits, world), torch.tensor(0.5)
    rows = torch.ones(world, cols) * levels.most * step
    rows[:, ::2] *= -1
    total = sum(levels.pack(row, step, 3, rank)[0] for rank, row in enumerate(rows))
    assert total.dtype == ROOM[bits][0]
    assert levels.unpack(total, step, cols).equal(rows.sum(0))


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rounding_is_unbiased_and_differs_between_ranks(bits, generator):
    cells, step, world = 0.4 * torch.randn(500, generator=generator), torch.tensor(1.0), 2
    levels = Levels(bits, world)
    packed = [[levels.pack(cells, step, key, rank)[0] for rank in (0, 1)] for key in range(100)]
    assert not packed[0][0].equal(packed[0][1])
    means = torch.stack([levels.unpack(a + b, step, 500) for a, b in packed]).mean(0) / 2
    # 200 roundings of a cell, each with a standard deviation of at most 1/2: one in 2e6 cells is
    # beyond 5 of these.
    assert (means - cells).abs().max() < 5 * 0.5 / 200**0.5


def test_what_is_beyond_the_largest_level_is_cut_off_and_counted():
    levels, step = Levels(8, 2), torch.tensor(1.0)
    cells = torch.tensor([1000.0, -1000.0, torch.nan, 1.0])
    packed, clipped = levels.pack(cells, step, 0, 0)
    assert float(clipped) == 0.5
    zeros, _ = levels.pack(torch.zeros(4), step, 0, 1)
    assert levels.unpack(packed + zeros, step, 4).tolist() == [63.0, -63.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("bits", "scale", "share"), [(4, 1e-8, 0.1), (4, 1e8, 0.1), (8, 1.0, 0.001), (16, 1.0, 0.001)]
)
def test_the_step_settles_where_few_cells_are_cut_off(bits, scale, share, generator):
    levels, step, seen = Levels(bits, 4), torch.zeros(()), []
    assert levels.clipped == share
    for _ in range(100):
        cells = scale * torch.randn(20_000, generator=generator)
        _, clipped = levels.pack(cells, step, 0, 0)
        step = levels.next_step(step, clipped, cells.square().mean().sqrt())
        seen.append(float(clipped))
    # The step goes up and down around it.
    assert share / 4 < sum(seen[50:]) / 50 < share * 2


def test_too_many_workers_for_the_bits():
    assert Levels(4, 7).most == 1
    with pytest.raises(UserError, match="bits=4 has room for 7 workers, and there are 8"):
        Levels(4, 8)
