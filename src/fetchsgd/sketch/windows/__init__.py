"""Sliding windows of sketches (section 4.2, the end of appendix B, appendix D).

Vanilla error accumulation sums up all gradients, and its noise grows with t. Here several sketches
each sum up the gradients since some round, and old ones are dropped. All forms share one interface
over a state `Suffixes` of plain tensors:

    insert(state, table) -> state           Insert(): a new gradient goes into all sketches
    find_heavy(state, k, tau) -> Found      FindHeavy(): the union of what the sketches hold
    update(state, found, given) -> state    Update(): what was found leaves all sketches
    clear(state, cells, left) -> state      the same for `error_reset = "zero"`

    forms.py     Overlapping: I sketches, one for each suffix of at most I gradients (figure 2)
                 Histogram: O(log I / eps) of them (Braverman and Ostrovsky's smooth histogram)
    pruning.py   which sketches a histogram keeps, and what holds of those
    heavy.py     FindHeavy and Update, the same for both

What holds for any gradients, and what does not:

- Overlapping: after t rounds there is a sketch of exactly the last I' gradients, for all I' <= I
  and I' <= t. So a coordinate that is heavy in one of these sums is found by a threshold with the
  chance that a Count Sketch of this size finds it, by a union bound over I sketches. Nothing older
  than I rounds is in any of them.
- Histogram: never more than `most_sketches(I, eps)` sketches; for all I' <= I one of the last
  a gradients with I' <= a <= max(I', I' / (1 - eps)^2); nothing that is 2 I rounds old.
  A coordinate is found if it is heavy in the sums that are kept. For noise as in Definition 1, of
  about equal length each round, the norm grows as the root of the age, so that a coordinate that is
  tau-heavy over I' gradients is still (1 - eps) tau-heavy in the nearest longer sum.
- The k largest estimates are mostly those of the longest sums, whose noise is largest. A signal
  that is heavy in a short sum alone may not be among them: the theorem is about thresholds.
- The rule on norms is proved by Braverman and Ostrovsky for norms that only grow with the window.
  Norms of sums of signed gradients may shrink, so for us it is a heuristic, and only ever decides
  between sketches whose ages alone would allow them to be dropped.

Update is not what is printed. Lines 12 and 14 "add the sketch to each of the S_e^i": then a sketch
that holds a quarter of a signal loses all of it, is left with minus three quarters, which is found
in the next round, and so on forever with changing sign (tests/sketch/test_windows.py). Here every
sketch loses what it holds: those that reach as far back as the one that found a value lose the
value, younger ones their own estimate. This keeps every sketch the sum of the last gradients, less
what was sent of those.
"""

from fetchsgd.sketch.windows.forms import Histogram, Overlapping, SlidingWindow
from fetchsgd.sketch.windows.heavy import Found, Suffixes
from fetchsgd.sketch.windows.pruning import most_sketches, survivors

__all__ = [
    "Found",
    "Histogram",
    "Overlapping",
    "SlidingWindow",
    "Suffixes",
    "most_sketches",
    "survivors",
]
