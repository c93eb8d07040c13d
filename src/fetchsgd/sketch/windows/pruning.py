"""Which sketches a smooth histogram keeps (appendix D; Braverman and Ostrovsky 2007).

Their rule, oldest sketch first: drop S^(i+1) when (1 - eps) |S^(i)| <= |S^(i+2)|, and S^(1) when
S^(2) covers the window as well. With norms that only grow with the window each second one is then
shorter by 1 - eps, so that between norms of ratio R there are at most 2 + 2 ln R / -ln(1 - eps).
For gradients that are orthogonal and of one length, as noise is, R is the root of the oldest age.

Our norms may shrink as a window grows, so three things are added.

- All three norms must be within 1 - eps of each other. Where norms only grow this is the same.
- A sketch is only dropped if the ages of its neighbours are within (1 - eps)^2, which is what
  norms within 1 - eps mean for noise. So no gap in ages is ever wider. And nothing is dropped next
  to a sketch that already covers the window, which would prolong its life: no age reaches 2 I.
- While there are more than the bound for R^2 = 2 I, the one goes whose neighbours are closest in
  norm. There always is one: if no age were within (1 - eps)^2 of the one two further on, the second
  oldest of so many would be older than the window.
"""

from __future__ import annotations

import math

SMALLEST = 1e-300  # in place of the logarithm of zero


def most_sketches(window: int, eps: float) -> int:
    """2 + ln(2 I) / -ln(1 - eps), rounded up to an even number, or I if that is less."""
    pairs = math.ceil(math.log(2 * window) / (-2 * math.log1p(-eps)))
    return min(window, 2 + 2 * pairs)


def survivors(ages: list[int], norms: list[float], window: int, eps: float) -> list[int]:
    """Which places are kept, of sketches given oldest first; never more than `most_sketches`."""
    kept = list(range(len(ages)))
    while len(kept) > 1 and ages[kept[1]] >= window:
        del kept[0]
    most, allowed = most_sketches(window, eps), -math.log1p(-eps)
    logs = [math.log(max(norm, SMALLEST)) for norm in norms]
    while True:
        droppable = [
            (_spread(logs, triple), middle + 1)
            for middle, triple in enumerate(zip(kept, kept[1:], kept[2:], strict=False))
            if ages[triple[0]] < window and (1 - eps) ** 2 * ages[triple[0]] <= ages[triple[2]]
        ]
        if len(kept) <= most and all(spread > allowed for spread, _ in droppable):
            return kept
        assert droppable, "ages are distinct and the youngest is 1"
        del kept[min(droppable)[1]]


def _spread(logs: list[float], places: tuple[int, ...]) -> float:
    chosen = [logs[place] for place in places]
    spread = max(chosen) - min(chosen)
    return spread if spread >= 0 else math.inf  # of infinities and NaN
