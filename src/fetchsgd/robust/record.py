"""What speaks against each client, over all rounds that it took part in.

Evidence of single rounds is added up, as in Page's test (1954), within bounds: so who has been
honest for long and begins to lie is found out soon, and who was suspected wrongly is soon cleared.
Late in training honest clients have nothing in common any more, and rounds say nothing; then the
record of the early ones still stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

# In units of what it takes to leave a client out. The first is good for a round or two in which
# one is far from the others by chance; the second is a round or two to be cleared.
CREDIT, MOST = 4.0, 4.0

Members = Sequence[Sequence[int]]  # the clients of each group


class Record:
    """A logarithm of odds for each client that has been seen; 0 for all others."""

    def __init__(self, against: Mapping[int, float] | None = None) -> None:
        self.against = dict(against or {})

    def with_round(
        self, members: Members, evidence: Float64[Tensor, " groups"], limit: float
    ) -> tuple[Record, Float64[Tensor, " groups"]]:
        """After a round that says this of its groups, and what then speaks against each group.

        limit: at which one is left out. In a group of several any may be the liar, so all answer
        for it, and the group for the one with the worst record.
        """
        after, worst = dict(self.against), []
        for clients, found in zip(members, evidence.tolist(), strict=True):
            for client in clients:
                total = self.against.get(client, 0.0) + found
                after[client] = min(max(total, -CREDIT * limit), MOST * limit)
            worst.append(max(after[client] for client in clients))
        return Record(after), torch.tensor(worst, dtype=torch.float64, device=evidence.device)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {
            "clients": torch.tensor(list(self.against), dtype=torch.int64),
            "against": torch.tensor(list(self.against.values()), dtype=torch.float64),
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Record:
        return cls(dict(zip(tensors["clients"].tolist(), tensors["against"].tolist(), strict=True)))
