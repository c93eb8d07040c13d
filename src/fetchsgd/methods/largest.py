"""The k largest coordinates of many vectors at once: local top-k's choice, as a mask or summed up.

Neither sorted nor listed: at k in the millions, indices cost more than all the rest. Nothing here
waits for the device. On a GPU, largest_cuda.py does it in a few passes.
"""

from __future__ import annotations

import importlib.util

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.vector import FIRST_NAN, MAGNITUDE_BITS

# What the programs for a GPU take: below, launches are all that counts; above, 32 bits overflow.
SMALLEST, LARGEST = 1 << 12, 1 << 30


def largest_mask(vectors: Float32[Tensor, "n dim"], k: int) -> Bool[Tensor, "n dim"]:
    """The k of largest magnitude in each row: NaN first, and of equals those of lowest index."""
    if k == vectors.shape[1]:
        return torch.ones_like(vectors, dtype=torch.bool)
    if _suits_programs(vectors):
        from fetchsgd.methods import largest_cuda

        return largest_cuda.largest_mask(vectors, k)
    above, ties, wanted = _compared_with_threshold(vectors, k)
    return above.logical_or_(_first_of_rows(ties, wanted))


def largest_sum(
    vectors: Float32[Tensor, "n dim"], shares: Float32[Tensor, " n"], k: int
) -> tuple[Float32[Tensor, " dim"], Int64[Tensor, ""]]:
    """The sum of what `largest_mask` leaves of each row times its share; how many are not zero."""
    if _suits_programs(vectors):
        from fetchsgd.methods import largest_cuda

        return largest_cuda.largest_sum(vectors, shares, k)
    left = torch.where(largest_mask(vectors, k), vectors, 0)
    return shares @ left, left.count_nonzero()


def _suits_programs(vectors: Float32[Tensor, "n dim"]) -> bool:
    """Whether the programs for a GPU can run on these vectors, and are worth it."""
    is_right_size = len(vectors) > 0 and SMALLEST <= vectors.shape[1] < LARGEST
    is_there = vectors.is_cuda and vectors.is_contiguous()
    return is_there and is_right_size and importlib.util.find_spec("triton") is not None


def _compared_with_threshold(
    vectors: Float32[Tensor, "n dim"], k: int
) -> tuple[Bool[Tensor, "n dim"], Bool[Tensor, "n dim"], Int64[Tensor, " n"]]:
    """What lies above the k-th largest of its row, what equals it, and how many of those to take.

    Integers, since the least of floats is NaN wherever one is among them.
    """
    keys = vectors.view(torch.int32) & MAGNITUDE_BITS
    top = keys.topk(k, dim=1, sorted=False).values
    threshold = top.amin(dim=1, keepdim=True).clamp_(max=FIRST_NAN)
    # All NaN are equal: nothing is above a threshold that is one.
    ceiling = threshold.masked_fill(threshold == FIRST_NAN, MAGNITUDE_BITS)
    above = keys > ceiling
    ties = (keys >= threshold).logical_xor_(above)
    return above, ties, (top <= ceiling).sum(dim=1)


def _first_of_rows(
    flags: Bool[Tensor, "n dim"], counts: Int64[Tensor, " n"]
) -> Bool[Tensor, "n dim"]:
    """So many of the flags of each row, from the left."""
    dtype = torch.int32 if flags.numel() < 1 << 31 else torch.int64
    # One sum runs through all rows: on a GPU, sums along few long rows are far slower.
    ranks = flags.flatten().to(dtype).cumsum_(dim=0).view(flags.shape)
    before = torch.nn.functional.pad(ranks[:-1, -1], (1, 0))
    last = (before + counts).to(dtype)
    return (ranks <= last[:, None]).logical_and_(flags)
