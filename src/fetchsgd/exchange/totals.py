"""Two whole numbers that are summed beside a masked vector: what clients weigh, and their losses.

Both modulo 2^64, under masks as the vector is, so a server learns the total weight and the mean
loss, and neither of any client. A loss is in fixed point and times the client's weight.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import UInt64
from numpy import ndarray

NUM_TOTALS = 2
FRACTION_BITS = 20
MOST_LOSS = float(1 << 12)  # more counts as this; a thousand clients of a million examples fit
MOST_WEIGHT = 1 << 20


def to_totals(weight: int, loss: float) -> UInt64[ndarray, " totals"]:
    """A client's own. A loss that is not a number counts as the largest: something is wrong."""
    if not 1 <= weight <= MOST_WEIGHT:
        raise ValueError(f"a client weighs from 1 to {MOST_WEIGHT}, not {weight}")
    bounded = max(-MOST_LOSS, min(loss, MOST_LOSS)) if not math.isnan(loss) else MOST_LOSS
    fixed = round(bounded * weight * (1 << FRACTION_BITS))
    return np.array([weight, fixed % (1 << 64)], dtype=np.uint64)


def from_totals(totals: UInt64[ndarray, " totals"]) -> tuple[int, float]:
    """The sum of weights, and the weighted mean of losses; nan where nothing weighs anything."""
    weight, fixed = (int(total) for total in totals)
    signed = fixed - (1 << 64) if fixed >> 63 else fixed
    return weight, signed / (1 << FRACTION_BITS) / weight if weight else math.nan
