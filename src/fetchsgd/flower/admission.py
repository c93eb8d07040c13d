"""Which replies are believed, judged by what other clients send. Nothing here knows Flower.

A bound is a factor times the largest median so far. A median, because a minority of clients cannot
move it. The largest so far, because gradients shrink as training goes on, for most clients long
before they do for all: late in a run an honest reply may be millions of times as long as the median
of its own round, and is no longer than those of the beginning (docs/federation.md has the numbers).
Medians are over the accepted replies of the last rounds, in each of which a client counts once; of
an even number of values the lower middle one is taken.

The first replies of a run are held back until there are three of them, or until the round closes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

ENOUGH = 3  # replies for a median that one liar cannot move
ROUNDS = 10  # that medians look back on
LOSS_FACTOR = 30.0  # a loss counts at most as so many times one plus the largest median
MAX_LOSS = 1e30  # whatever is said: sums of losses are in float32

REFERENCES = ("norm", "examples", "loss", "step")
RECENT = "signed_loss"  # as clients say it, by which a run is seen to diverge


@dataclass(frozen=True)
class Claim:
    """What a reply says about itself, and the norm of what it carries."""

    client: int
    norm: float  # of a vector, or of the longest row of a table
    examples: int
    loss: float


@dataclass(frozen=True)
class Decision:
    """What becomes of a reply. Where it is rejected there is a sentence that says why."""

    claim: Claim
    examples: float  # that it counts as
    loss: float  # that is recorded
    rejected: str = ""


class LargestMedian:
    """The largest median so far, over values of the last rounds and of the one that is open.

    Zeros say nothing about how large values are, and are left out.
    """

    def __init__(self, largest: float = 0.0) -> None:
        self.largest = largest
        self.rounds: deque[list[float]] = deque(maxlen=ROUNDS)
        self.recent: list[float] = []  # sorted

    def open(self) -> None:
        """A round without values."""
        past = (value for values in self.rounds for value in values)
        self.recent = sorted(value for value in past if 0 < value < math.inf)

    def add(self, value: float) -> None:
        if 0 < value < math.inf:
            insort(self.recent, value)

    def remove(self, value: float) -> None:
        if 0 < value < math.inf:
            del self.recent[bisect_left(self.recent, value)]

    @property
    def reference(self) -> float:
        """0 where it is unknown. What is known is not replaced by the word of one or two."""
        if not self.recent or (self.largest and len(self.recent) < ENOUGH):
            return self.largest
        return max(self.largest, self.recent[(len(self.recent) - 1) // 2])

    def close(self, values: Iterable[float]) -> None:
        """These are the values of the round, in whatever order their replies came."""
        self.rounds.append(sorted(values))
        self.open()
        if len(self.recent) >= ENOUGH:
            self.largest = self.reference


class Admission:
    """Judges the replies of one round after another.

    norm_factor and examples_factor are settings of the federation; 0 is no bound. `references` are
    those of an earlier server, so that one that resumes late in a run knows how it began.
    """

    def __init__(
        self,
        norm_factor: float,
        examples_factor: float,
        references: Mapping[str, float] | None = None,
    ) -> None:
        self.norm_factor, self.examples_factor = norm_factor, examples_factor
        known = references or {}
        self.norms, self.examples, self.losses, self.steps = (
            LargestMedian(known.get(name, 0.0)) for name in REFERENCES
        )
        self.recent_losses: deque[list[float]] = deque(maxlen=ROUNDS)
        self.scale = 1.0
        self.undecided: dict[int, Claim] = {}
        self.accepted: dict[int, Claim] = {}

    @property
    def references(self) -> dict[str, float]:
        """What a later server has to know."""
        found = (self.norms, self.examples, self.losses, self.steps)
        return {name: each.largest for name, each in zip(REFERENCES, found, strict=True)}

    @property
    def windows(self) -> dict[str, list[list[float]]]:
        """The last rounds' values, oldest first, which a later server should know, too."""
        found = (self.norms, self.examples, self.losses, self.steps)
        named = {name: list(each.rounds) for name, each in zip(REFERENCES, found, strict=True)}
        return named | {RECENT: list(self.recent_losses)}

    def remember(self, windows: Mapping[str, Iterable[list[float]]]) -> None:
        """Those of an earlier server."""
        found = (self.norms, self.examples, self.losses, self.steps)
        for name, each in zip(REFERENCES, found, strict=True):
            each.rounds = deque(windows[name], maxlen=ROUNDS)
        self.recent_losses = deque(windows[RECENT], maxlen=ROUNDS)

    def open_round(self, scale: float) -> None:
        """Scale: what norms are proportional to, such as a learning rate that clients step with."""
        self.scale = scale
        self.undecided.clear()
        self.accepted.clear()
        for reference in (self.norms, self.examples, self.losses, self.steps):
            reference.open()

    def submit(self, claim: Claim) -> None:
        """A reply to decide on; another one of the same client does not count."""
        if claim.client in self.accepted or claim.client in self.undecided:
            return
        self.undecided[claim.client] = claim
        self.norms.add(self._scaled(claim.norm))
        self.examples.add(claim.examples)
        self.losses.add(abs(claim.loss))

    def decide(self, is_closing: bool = False) -> list[Decision]:
        """On all replies that are waiting, if there are enough to compare them with."""
        past = sum(len(values) for values in self.norms.rounds)
        num_replies = past + len(self.accepted) + len(self.undecided)
        if not (self.norms.largest > 0 or num_replies >= ENOUGH or is_closing):
            return []
        # All are compared with the same references, in whatever order they came.
        decisions = [self._judged(claim) for claim in self.undecided.values()]
        self.undecided.clear()
        for decision in decisions:
            claim = decision.claim
            if decision.rejected:
                self.norms.remove(self._scaled(claim.norm))
                self.examples.remove(claim.examples)
                self.losses.remove(abs(claim.loss))
            else:
                self.accepted[claim.client] = claim
        return decisions

    def _judged(self, claim: Claim) -> Decision:
        most_examples = self.examples_factor * self.examples.reference or math.inf
        most_loss = min(LOSS_FACTOR * (1 + self.losses.reference), MAX_LOSS)
        return Decision(
            claim,
            min(claim.examples, most_examples),
            max(-most_loss, min(claim.loss, most_loss)),
            self._too_long(claim.norm),
        )

    def _scaled(self, norm: float) -> float:
        """With a scale of 0 all that is honest is 0."""
        if not self.scale:
            return math.inf if norm else 0.0
        return norm / self.scale

    def _too_long(self, norm: float) -> str:
        scaled = self._scaled(norm)
        if not math.isfinite(scaled):
            return f"its norm is {norm:.3g}, and should be 0 at a learning rate of 0"
        bound = self.norm_factor * self.norms.reference
        if not bound or scaled <= bound:
            return ""
        return (
            f"its norm is {norm:.3g}, above {bound * self.scale:.3g}, which is "
            f"federation.norm_factor = {self.norm_factor:g} times the largest median so far"
        )

    def check_step(self, norm: float) -> str:
        """Why the mean of this round must not be applied; nothing if it may."""
        if not math.isfinite(norm):
            return "the mean of the replies is not finite"
        bound = self.norm_factor * self.steps.largest  # 0 before the first few steps
        if not bound or self._scaled(norm) <= bound:
            return ""
        return (
            f"the norm of the mean of the replies is {norm:.3g}, above {bound * self.scale:.3g}, "
            f"which is federation.norm_factor = {self.norm_factor:g} times the largest median of "
            "such norms so far"
        )

    def close_round(self, step_norm: float) -> None:
        """The round is applied: its replies count for those that come."""
        claims = self.accepted.values()
        self.norms.close(self._scaled(claim.norm) for claim in claims)
        self.examples.close(claim.examples for claim in claims)
        self.losses.close(abs(claim.loss) for claim in claims)
        self.recent_losses.append(sorted(claim.loss for claim in claims))
        self.steps.close([self._scaled(step_norm)])

    @property
    def typical_loss(self) -> float:
        """The median over the last rounds, by which a run is seen to diverge."""
        return median_low([loss for losses in self.recent_losses for loss in losses])
