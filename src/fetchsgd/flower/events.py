"""What happened in a federation, counted since its first round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fetchsgd.exchange.rejections import REASONS
from fetchsgd.flower.admission import REFERENCES

PREFIX = "federation/"
COUNTED = (
    "asked",  # messages with work
    "replies",  # accepted
    "late",  # of a round that was closed already
    "duplicate",  # of a client whose reply was accepted already
    "failed",  # Flower says that there will be no reply
    "silent",  # asked, and no reply when the round was closed
    "resent",  # clients that did not hold what the server believed
    "lost",  # clients that no longer hold what they held
    "joined",
    "left",
    "same_client",  # nodes that say they are a client whose node is there already
    "too_few",  # deadlines that passed with fewer than min_replies
    "refused_steps",  # means of a round that were not applied
    "capped_examples",  # replies that count as fewer examples than their client claims
    "left_out",  # rejected again and again, and not asked for some rounds; once for each time
    "bounded_losses",  # replies whose loss is recorded as less than their client claims
    "resumed",  # servers that continued from a checkpoint
    *(f"rejected_{reason}" for reason in REASONS),
    "sent_bytes",  # payloads, measured
    "received_bytes",
)
MEASURED = (
    "median_norm",  # of the replies that were merged in the last round
    "largest_norm",
    "step_norm",  # of their mean
    *(f"reference_{name}" for name in REFERENCES),  # the largest medians so far, see admission.py
)


class Events:
    """Counters and measures with the names above, as they are in the lines of metrics.jsonl."""

    def __init__(self, line: Mapping[str, Any] | None = None) -> None:
        """Continue from a line."""
        before = line or {}
        self.counts = Counter({name: int(before.get(PREFIX + name) or 0) for name in COUNTED})
        self.measures = {name: float(before.get(PREFIX + name) or 0) for name in MEASURED}

    def count(self, name: str, by: int = 1) -> None:
        assert name in COUNTED, name
        self.counts[name] += by

    def measure(self, name: str, value: float) -> None:
        assert name in MEASURED, name
        self.measures[name] = value

    @property
    def references(self) -> dict[str, float]:
        """What an earlier server knew of honest replies."""
        return {name: self.measures[f"reference_{name}"] for name in REFERENCES}

    @property
    def rejected(self) -> int:
        return sum(self.counts[f"rejected_{reason}"] for reason in REASONS)

    def line(self) -> dict[str, float]:
        found: dict[str, float] = {name: self.counts[name] for name in COUNTED}
        found |= {"rejected": self.rejected} | self.measures
        return {PREFIX + name: value for name, value in found.items()}
