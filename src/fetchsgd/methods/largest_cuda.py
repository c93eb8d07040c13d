"""The k largest of many vectors on a GPU, in some four passes over them.

The threshold of each row is found among the bits of its floats. A sample says about where it lies;
the pass that counts what is there cuts that window into bins, and the next one the bin that holds
the threshold. A row that the sample misled takes a pass or two more; the others skip those. Which
of the elements that equal the threshold come first matters only where some of them are left out.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.methods import largest_programs as programs
from fetchsgd.vector import FIRST_NAN, MAGNITUDE_BITS

# Of a window: enough that two passes find a threshold among some 2^23 keys around it.
BINS = 4096
# One pass for the sample's window, and three that find any of 2^31 keys from anywhere.
PASSES = 4
# In the sample of a row: as many as torch sorts in one launch.
SAMPLES = 4096
# Floats that a program takes at once, and how many times it does.
SPAN = 1024
SPANS = 16


def largest_mask(vectors: Float32[Tensor, "n dim"], k: int) -> Bool[Tensor, "n dim"]:
    """As in largest.py."""
    dim = vectors.shape[1]
    keys = vectors.view(torch.int32)
    windows = _thresholds(keys, k)
    ties = _ties_before(keys, windows)
    mask = torch.empty_like(vectors, dtype=torch.bool)
    launch(
        programs.write_mask, _grid(keys),
        mask.view(torch.uint8), windows, ties, keys, dim, _tiles(dim), ties.shape[1],
        LAST=FIRST_NAN, SPAN=SPAN, SPANS=SPANS,
    )  # fmt: skip
    return mask


def largest_sum(
    vectors: Float32[Tensor, "n dim"], shares: Float32[Tensor, " n"], k: int
) -> tuple[Float32[Tensor, " dim"], Int64[Tensor, ""]]:
    """As in largest.py."""
    n, dim = vectors.shape
    keys = vectors.view(torch.int32)
    windows = _thresholds(keys, k)
    ties = _ties_before(keys, windows)
    total = vectors.new_empty(dim)
    launch(
        programs.add_chosen, (ties.shape[1],),
        total, shares.contiguous(), windows, ties, keys, n, dim, ties.shape[1],
        LAST=FIRST_NAN, SPAN=SPAN,
    )  # fmt: skip
    # All that is above a threshold is above zero.
    threshold, _, wanted, _ = windows.unbind(dim=1)
    return total, (k - wanted * (threshold == 0)).sum()


def _thresholds(keys: Int32[Tensor, "n dim"], k: int) -> Int32[Tensor, "n 4"]:
    """Of each row: its k-th largest key, twice, how many of that are wanted, how many there are."""
    n, dim = keys.shape
    windows = _first_windows(keys, k)
    counts = torch.zeros(PASSES, n, BINS, dtype=torch.int32, device=keys.device)
    for count in counts:
        launch(
            programs.count_window, _grid(keys),
            count, windows, keys, dim, _tiles(dim),
            LAST=FIRST_NAN, BINS=BINS, SPAN=SPAN, SPANS=SPANS,
        )  # fmt: skip
        launch(programs.narrow_window, (n,), windows, count, dim, k, LAST=FIRST_NAN, BINS=BINS)
    return windows


def _first_windows(keys: Int32[Tensor, "n dim"], k: int) -> Int32[Tensor, "n 4"]:
    """Where a sample of each row says that its k-th largest is: three standard deviations around.

    Never a single key, which would be taken for a threshold.
    """
    n, dim = keys.shape
    # An odd step, since layers repeat themselves in even ones.
    sample = keys[:, :: -(-dim // SAMPLES) | 1] & MAGNITUDE_BITS
    ordered = sample.clamp_(max=FIRST_NAN).sort(dim=1).values
    size = ordered.shape[1]
    rank = k / dim * size
    spread = 3 * math.sqrt(rank * (1 - k / dim)) + 1
    first, last = math.floor(rank - spread), math.ceil(rank + spread)
    windows = keys.new_zeros(n, 4)
    windows[:, 1] = ordered[:, -first].clamp(min=1) if first >= 1 else FIRST_NAN
    if last <= size:
        windows[:, 0] = torch.minimum(ordered[:, -last], windows[:, 1] - 1)
    return windows


def _ties_before(
    keys: Int32[Tensor, "n dim"], windows: Int32[Tensor, "n 4"]
) -> Int32[Tensor, "n spans"]:
    """How many elements that equal the threshold of their row lie in front of each span."""
    n, dim = keys.shape
    ties = torch.zeros(n, -(-dim // SPAN), dtype=torch.int32, device=keys.device)
    launch(
        programs.count_ties, _grid(keys),
        ties, windows, keys, dim, _tiles(dim), ties.shape[1],
        LAST=FIRST_NAN, SPAN=SPAN, SPANS=SPANS,
    )  # fmt: skip
    # One flat scan: torch's scan of few long rows is far slower.
    before = ties.flatten().cumsum(dim=0).view(ties.shape) - ties
    return (before - before[:, :1]).int()


def _tiles(dim: int) -> int:
    """Programs for a row."""
    return -(-dim // (SPAN * SPANS))


def _grid(keys: Int32[Tensor, "n dim"]) -> tuple[int]:
    return (keys.shape[0] * _tiles(keys.shape[1]),)
