"""Cells to round: ordinary ones, and those on which rounding goes wrong."""

import math

import torch

from fetchsgd.quantisers.level_layout import RUN


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def awkward():
    """Runs with zeros, tiny, huge and non-finite cells, and the edges of bfloat16."""
    inf, nan = math.inf, math.nan
    heads = [
        [0.0, -0.0],
        [1e-45, -1e-40, 1e-38],
        [2.0**-100, -(2.0**-101), 1e-38, 1e-45],
        [2.0**-100 * 0.999, 2.0**-101],
        [2.0**-100 * 0.99, 2.0**-120],
        [3e38, -3.4028235e38, 1.0],
        [3.3895314e38, 1e38, -0.0],
        [inf, 1.0],
        [-inf, nan],
        [nan, 3e38],
        [1.0, -1.0, 1.00390625, 1.001],
        [-1e-30, 1e-30, 1.0, 1e-7, -1e-7],
    ]
    cells = normal(1, len(heads) * RUN)
    for i, head in enumerate(heads):
        size = max((abs(x) for x in head if math.isfinite(x)), default=1.0)
        # The rest of the run stays below, so that the head decides the scale.
        cells[0, i * RUN : (i + 1) * RUN] *= 0.1 * size
        cells[0, i * RUN : i * RUN + len(head)] = torch.tensor(head)
    # A NaN whose payload lies in the bits that bfloat16 drops.
    cells.view(torch.int32)[0, 9 * RUN] = 0x7F800001
    return cells
