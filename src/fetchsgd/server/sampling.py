"""Who takes part in a round (Algorithm 1, line 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fetchsgd.randomness import numpy_generator


@dataclass(frozen=True)
class Sampler:
    """The cohort of each round, as a function of the seed and the round alone.

    "epoch" goes through all clients in a new random order each epoch, as the paper's experiments
    do; the last cohort of an epoch may be smaller. "uniform" draws every cohort anew. "poisson"
    tosses a coin for each client, so that cohorts have `per_round` clients on average: whether one
    takes part says nothing about the others, which privacy gains most by (fetchsgd.privacy).

    "stay" is for few workers, all of whom take part in every round: the first `per_round` clients.
    After every `leave_every` rounds the `leaving` of them who came first leave for good, and as
    many new ones join.

    >>> sampler = Sampler(num_clients=6, per_round=3, how="epoch", seed=0)
    >>> sorted([*sampler.cohort(0).tolist(), *sampler.cohort(1).tolist()])
    [0, 1, 2, 3, 4, 5]
    >>> workers = Sampler(6, 3, "stay", seed=0, leaving=1, leave_every=10)
    >>> workers.cohort(9).tolist(), workers.cohort(10).tolist()
    ([0, 1, 2], [1, 2, 3])
    """

    num_clients: int
    per_round: int
    how: str
    seed: int
    leaving: int = 0
    leave_every: int = 0

    @property
    def rounds_per_epoch(self) -> int:
        """In which each client, or each worker who is there, takes part once."""
        return 1 if self.how == "stay" else -(-self.num_clients // self.per_round)

    def needed(self, rounds: int) -> int:
        """Clients that there must be for so many rounds."""
        return self.per_round + self._left(rounds - 1)

    def _left(self, round: int) -> int:
        """How many have left before a round."""
        return round // self.leave_every * self.leaving if self.leave_every else 0

    def cohort(self, round: int) -> NDArray[np.int64]:
        """Distinct client numbers."""
        if self.how == "stay":
            return self._left(round) + np.arange(self.per_round, dtype=np.int64)
        if self.how == "uniform":
            generator = numpy_generator(self.seed, "cohort", round)
            return generator.choice(self.num_clients, self.per_round, replace=False, shuffle=False)
        if self.how == "poisson":
            generator = numpy_generator(self.seed, "cohort", round)
            takes_part = generator.random(self.num_clients) < self.per_round / self.num_clients
            return np.flatnonzero(takes_part)
        epoch, place = divmod(round, self.rounds_per_epoch)
        order = self._order(epoch)
        return order[place * self.per_round : (place + 1) * self.per_round]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        known: dict[int, NDArray[np.int64]] = self.__dict__.setdefault("_orders", {})
        if epoch not in known:
            known.clear()  # one epoch at a time, however long the run
            known[epoch] = numpy_generator(self.seed, "cohort", epoch).permutation(self.num_clients)
        return known[epoch]
