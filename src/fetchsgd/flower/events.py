"""What happened in a federation, counted since its first round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fetchsgd.exchange.rejections import REASONS, Reason
from fetchsgd.flower.admission import REFERENCES
from fetchsgd.runs.endpoint import Numbers

PREFIX = "federation/"
BY_CLIENT = "rejected_by_client"  # {"3": {"norm": 2}}, of those with the most
MOST_NAMED = 20
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
        kept: dict[str, dict[str, int]] = before.get(PREFIX + BY_CLIENT) or {}
        self.by_client = {int(client): Counter(why) for client, why in kept.items()}

    def count(self, name: str, by: int = 1) -> None:
        assert name in COUNTED, name
        self.counts[name] += by

    def reject(self, client: int, reason: Reason) -> None:
        """A client's reply is rejected."""
        self.count(f"rejected_{reason}")
        self.by_client.setdefault(client, Counter())[reason] += 1

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

    def most_rejected(self) -> dict[str, dict[str, int]]:
        """The clients of whom most was rejected, with the reasons."""
        worst = sorted(
            self.by_client.copy().items(), key=lambda found: (-found[1].total(), found[0])
        )
        return {str(client): dict(why) for client, why in worst[:MOST_NAMED]}

    def told_rejections(self) -> str:
        """How many, by reason, and the client of whom most was rejected: for a line of the log."""
        why = {reason: self.counts[f"rejected_{reason}"] for reason in REASONS}
        told = ", ".join(f"{count} {reason}" for reason, count in why.items() if count)
        for client, counts in list(self.most_rejected().items())[:1]:
            told += f"; client {client} most often, {sum(counts.values())}"
        return f"{self.rejected} rejected ({told})" if told else "0 rejected"

    def numbers(self) -> Iterator[Numbers]:
        """For an endpoint, also while a round is open; called from another thread."""
        counts = dict(self.counts)
        moved = {"up": counts.pop("received_bytes"), "down": counts.pop("sent_bytes")}
        yield Numbers("payload_bytes", "Bytes of payloads, measured.", moved, "way")
        reasons: dict[str, float] = {reason: counts.pop(f"rejected_{reason}") for reason in REASONS}
        yield Numbers("rejections", "Replies that were rejected.", reasons, "reason")
        most = {client: sum(why.values()) for client, why in self.most_rejected().items()}
        told = f"The same, of the {MOST_NAMED} clients with the most."
        yield Numbers("client_rejections", told, most, "client")
        yield Numbers("replies", "Replies that were accepted.", {"": counts.pop("replies")})
        yield Numbers("events", "What else has happened (fetchsgd.flower.events).", counts, "event")

    def line(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: self.counts[name] for name in COUNTED}
        found |= {"rejected": self.rejected} | self.measures
        if self.by_client:
            found[BY_CLIENT] = self.most_rejected()
        return {PREFIX + name: value for name, value in found.items()}
