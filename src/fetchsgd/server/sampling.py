"""Who takes part in a round (Algorithm 1, line 4).

Memory does not grow with the population: beyond MANY clients, the order of an epoch is not a list
but a keyed permutation, which says who is at a place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fetchsgd.randomness import number, numpy_generator

# Clients up to which the order of an epoch is drawn as a list.
MANY = 1 << 20
# Clients whose coins are tossed at once.
COINS = 1 << 18


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
            return self._tossed(generator)
        epoch, place = divmod(round, self.rounds_per_epoch)
        first = place * self.per_round
        last = min(first + self.per_round, self.num_clients)
        if self.num_clients > MANY:
            key = number(self.seed, "cohort", epoch)
            return permuted(np.arange(first, last), self.num_clients, key)
        return self._order(epoch)[first:last]

    def _tossed(self, generator: np.random.Generator) -> NDArray[np.int64]:
        chance, found = self.per_round / self.num_clients, []
        for first in range(0, self.num_clients, COINS):
            coins = generator.random(min(COINS, self.num_clients - first))
            found.append(first + np.flatnonzero(coins < chance))
        return np.concatenate(found)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        known: dict[int, NDArray[np.int64]] = self.__dict__.setdefault("_orders", {})
        if epoch not in known:
            known.clear()  # one epoch at a time, however long the run
            known[epoch] = numpy_generator(self.seed, "cohort", epoch).permutation(self.num_clients)
        return known[epoch]


def permuted(places: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Who is at these places of a random order of 0 to size - 1: a Feistel network under a key.

    It permutes the numbers of as many bits as size has, so who lands beyond size goes on from there
    until they are within; on average less than once.
    """
    bits = max((size - 1).bit_length(), 2)
    words = np.random.Philox(key=key).random_raw(8)
    found = places.copy()
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _mixed(found[outside].astype(np.uint64), bits, words)
        outside = outside[found[outside] >= size]
    return found


def _mixed(x: NDArray[np.uint64], bits: int, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Each half of the bits is changed by the other, four times in turn."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << bits // 2) - 1)
    high_mask = np.uint64((1 << bits - bits // 2) - 1)
    high, low = x >> low_bits, x & low_mask
    for first, second in words.reshape(-1, 2):
        high = high ^ _hash(low, first) & high_mask
        low = low ^ _hash(high, second) & low_mask
    return (high << low_bits | low).astype(np.int64)


def _hash(x: NDArray[np.uint64], word: np.uint64) -> NDArray[np.uint64]:
    """Every bit of x and of the word reaches the low bits (the finaliser of SplitMix64)."""
    x = x + word
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
