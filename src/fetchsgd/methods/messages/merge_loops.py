"""The inner loops that merge replies on a CPU: each number of a reply is read once by each.

Doubles are made in registers. A table of them would be twice a reply, through memory and back.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def add_weighted(total, numbers, weight):
    """Doubles, and floats times a weight; a whole number of examples loses no bit."""
    for i in range(numbers.size):
        total[i] += weight * np.float64(numbers[i])


# Sums may be taken in any order, or there would be no vector instructions.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def sum_of_squares(numbers):
    """Of floats, in double: finite if all of them are."""
    total = 0.0
    for i in range(numbers.size):
        number = np.float64(numbers[i])
        total += number * number
    return total
