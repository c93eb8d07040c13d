"""What happened in a federation, counted since its first round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fetchsgd.flower.rejections import REASONS

PREFIX = "federation/"
COUNTED = (
    "asked",  # messages with work
    "replies",  # accepted
    "late",  # of a round that was closed already
    "duplicate",  # of a client whose reply was accepted already
    "failed",  # Flower says that there will be no reply
    "silent",  # asked, and no reply when the round was closed
    "resent",  # clients that did not hold what the server believed
    "lost",  # clients that held something, and have lost it
    "joined",
    "left",
    "same_client",  # nodes that say they are a client whose node is there already
    "too_few",  # deadlines that passed with fewer than min_replies
    "resumed",  # servers that went on from a checkpoint
    *(f"rejected_{reason}" for reason in REASONS),
    "sent_bytes",  # payloads, measured
    "received_bytes",
)


class Events:
    """Counters with the names above, as they stand in the lines of metrics.jsonl."""

    def __init__(self, line: Mapping[str, Any] | None = None) -> None:
        """Go on from a line."""
        before = line or {}
        self.counts = Counter({name: int(before.get(PREFIX + name) or 0) for name in COUNTED})

    def count(self, name: str, by: int = 1) -> None:
        assert name in COUNTED, name
        self.counts[name] += by

    @property
    def rejected(self) -> int:
        return sum(self.counts[f"rejected_{reason}"] for reason in REASONS)

    def line(self) -> dict[str, int]:
        return {PREFIX + name: self.counts[name] for name in COUNTED} | {
            PREFIX + "rejected": self.rejected
        }
