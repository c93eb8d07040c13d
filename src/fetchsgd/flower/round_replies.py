"""The replies of one round: held back, rejected or merged, as admission.py decides."""

from __future__ import annotations

import logging
from dataclasses import replace
from statistics import median_low

import torch

from fetchsgd.exchange.merging import Accepted, Expected, RobustMean, RunningMean, length
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.admission import Admission, Claim, Decision
from fetchsgd.flower.events import Events
from fetchsgd.robust import Merger
from fetchsgd.server.rounds import Merged

log = logging.getLogger("flwr.fetchsgd")


class RoundReplies:
    """What has come so far. `scale` is what honest norms are proportional to."""

    def __init__(
        self,
        admission: Admission,
        expected: Expected,
        scale: float,
        events: Events,
        device: torch.device,
        merger: Merger | None = None,
    ) -> None:
        self.admission, self.expected, self.events = admission, expected, events
        self.round = expected.round
        self.mean = RunningMean(expected.message, device)
        if merger is not None:
            self.mean = RobustMean(expected.message, device, merger)
        self.too_long: list[int] = []  # clients whose replies were judged by others' and rejected
        self.norms: dict[int, float] = {}  # of the replies that have been merged, by client
        self.undecided: dict[int, Accepted] = {}  # replies held back until others have come
        admission.open_round(scale)

    def __len__(self) -> int:
        """Merged, or held back."""
        return len(self.norms) + len(self.undecided)

    def __contains__(self, client: int) -> bool:
        return client in self.norms or client in self.undecided

    @property
    def num_merged(self) -> int:
        return len(self.norms)

    def reject(self, client: int, error: RejectedError) -> None:
        self.events.reject(client, error.reason)
        log.warning(
            "client %d is rejected in round %d (%s): %s", client, self.round, error.reason, error
        )

    def add(self, client: int, reply: Accepted) -> None:
        """A reply that looks right by itself."""
        self.undecided[client] = reply
        self.admission.submit(Claim(client, reply.norm, reply.examples, reply.loss))
        self.decide()

    def decide(self, is_closing: bool = False) -> None:
        """Merge or reject the replies that can be compared with those of others."""
        for decision in self.admission.decide(is_closing):
            client = decision.claim.client
            reply = self.undecided.pop(client)
            if decision.rejected:
                self.reject(client, RejectedError("norm", decision.rejected))
                self.too_long.append(client)
            else:
                self._merge(decision, reply)

    def _merge(self, decision: Decision, reply: Accepted) -> None:
        claim, weight = decision.claim, reply.weight
        if self.expected.by_examples and decision.examples < claim.examples:
            weight = decision.examples
            self.events.count("capped_examples")
            log.warning(
                "client %d claims %d examples in round %d and counts as %g, which is "
                "federation.examples_factor = %g times the median claim",
                claim.client, claim.examples, self.round, weight, self.admission.examples_factor,
            )  # fmt: skip
        if decision.loss != claim.loss:
            self.events.count("bounded_losses")
            log.warning(
                "client %d claims a loss of %.3g in round %d, which is recorded as %.3g",
                claim.client, claim.loss, self.round, decision.loss,
            )  # fmt: skip
        self.mean.add(claim.client, replace(reply, weight=weight, loss=decision.loss))
        self.norms[claim.client] = claim.norm
        self.events.count("replies")

    @property
    def step_norm(self) -> float:
        return length(self.mean.mean)

    def refusal(self) -> str:
        """Why the mean must not be applied; nothing if it may."""
        return self.admission.check_step(self.step_norm)

    def norms_by_client(self) -> str:
        return ", ".join(f"{client}: {norm:.3g}" for client, norm in self.norms.items())

    def close(self) -> Merged:
        """The mean to apply. Norms go to the metrics, and references to the next server."""
        step = self.step_norm
        self.admission.close_round(step)
        self.events.measure("median_norm", median_low(self.norms.values()))
        self.events.measure("largest_norm", max(self.norms.values()))
        self.events.measure("step_norm", step)
        for name, value in self.admission.references.items():
            self.events.measure(f"reference_{name}", value)
        return self.mean.merged(self.admission.typical_loss)
