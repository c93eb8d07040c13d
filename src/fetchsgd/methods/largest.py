"""The k largest coordinates of many vectors at once, as a mask: local top-k's choice.

Neither sorted nor listed: at k in the millions, indices cost more than all the rest. Nothing here
waits for the device.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

# Without its sign, a float's bits are an integer that orders as the magnitude does, with infinity
# next to last and every NaN behind it.
MAGNITUDE_BITS = 0x7FFFFFFF
FIRST_NAN = 0x7F800001


def largest_mask(vectors: Float32[Tensor, "n dim"], k: int) -> Bool[Tensor, "n dim"]:
    """The k of largest magnitude in each row: NaN first, and of equals those of lowest index."""
    if k == vectors.shape[1]:
        return torch.ones_like(vectors, dtype=torch.bool)
    above, ties, wanted = _held_against_threshold(vectors, k)
    return above.logical_or_(_first_of_rows(ties, wanted))


def _held_against_threshold(
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
