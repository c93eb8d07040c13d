"""From revealed shares to the sum: restore secrets, and take away the masks that they give.

Of a survivor the seed of its self-mask; of a client that shared its secrets and sent no vector its
mask key, and with it the masks that its surviving neighbours have added. So work is linear in
clients: one mask for each survivor and at most `degree` for each that dropped out. Every secret is
checked against the advert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jaxtyping import UInt64
from numpy import ndarray

from fetchsgd.secure import keys, shamir
from fetchsgd.secure.errors import TooFewError
from fetchsgd.secure.graph import Graph
from fetchsgd.secure.masks import add_masks
from fetchsgd.secure.messages import Advert
from fetchsgd.secure.secret import Secret
from fetchsgd.secure.terms import Terms


@dataclass(frozen=True)
class Unmasking:
    """All that the server has when the last phase ends."""

    terms: Terms
    graph: Graph
    adverts: Mapping[int, Advert]
    shared: frozenset[int]
    survivors: frozenset[int]
    revealed: Mapping[int, Mapping[int, bytes]]  # by holder, then by owner

    def apply(self, totals: UInt64[ndarray, " totals"], words: UInt64[ndarray, " words"]) -> None:
        """In place; secrets are restored first, so a bad one is found before any mask is made."""
        seeds = {number: self._seed(number) for number in sorted(self.survivors)}
        dropped = {number: self._key(number) for number in sorted(self.shared - self.survivors)}
        add_masks(totals, words, self.terms.bits, self._masks(seeds, dropped))

    def _masks(
        self, seeds: Mapping[int, Secret], dropped: Mapping[int, X25519PrivateKey]
    ) -> Iterator[tuple[Secret, bool]]:
        """Keys of masks, and whether they are to be subtracted."""
        for number, seed in seeds.items():
            yield keys.self_mask_key(seed, self.terms, number), True
        for number, key in dropped.items():
            for other in self.graph.neighbours(number):
                if other in self.survivors:
                    public = self.adverts[other].mask_key
                    mask = keys.pair_mask_key(key, public, self.terms, (number, other))
                    yield mask, other < number  # who has the smaller number has added it

    def _seed(self, number: int) -> Secret:
        seed = self._restore(number)
        if keys.commitment(seed, self.terms, number) != self.adverts[number].commitment:
            raise _spoiled(number)
        return seed

    def _key(self, number: int) -> X25519PrivateKey:
        key = X25519PrivateKey.from_private_bytes(self._restore(number).reveal())
        if key.public_key().public_bytes_raw() != self.adverts[number].mask_key:
            raise _spoiled(number)
        return key

    def _restore(self, number: int) -> Secret:
        threshold = self.graph.parameters.threshold
        found = [
            (place, self.revealed[holder][number])
            for place, holder in enumerate(self.graph.neighbours(number), 1)
            if number in self.revealed.get(holder, ())
        ][:threshold]
        if len(found) < threshold:
            raise TooFewError(
                f"{len(found)} shares of client {number}'s secret were revealed, but at least"
                f" {threshold} must be; the round is dropped"
            )
        shares = np.frombuffer(b"".join(share for _, share in found), np.uint8)
        places = [place for place, _ in found]
        return Secret(shamir.combine(places, shares.reshape(threshold, -1)))


def _spoiled(number: int) -> TooFewError:
    return TooFewError(
        f"the shares of client {number}'s secret do not give what it has advertised: it, or one of"
        " its neighbours, is not honest; the round is dropped"
    )
