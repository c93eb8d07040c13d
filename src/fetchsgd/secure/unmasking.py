"""From revealed shares to the sum: restore secrets, and take away the masks that they give.

Of a survivor the seed of its self-mask; of a client that shared its secrets and sent no vector its
mask key, and with it the masks that its surviving neighbours have added. So work is linear in
clients: one mask for each survivor and at most `degree` for each that dropped out.

Every secret is checked against the advert. So wrong shares are noticed, and as more shares come
than are needed, other ones are put together until the secret is right: a dishonest neighbour or two
cannot spoil a round. Whose shares were right are taken first from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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

TRIES = 256  # choices of shares, where some are wrong


class Share(NamedTuple):
    """What a holder has revealed of a secret."""

    holder: int
    place: int
    value: bytes


@dataclass(frozen=True)
class Unmasking:
    """All that the server has when the last phase ends."""

    terms: Terms
    graph: Graph
    adverts: Mapping[int, Advert]
    shared: frozenset[int]
    survivors: frozenset[int]
    revealed: Mapping[int, Mapping[int, bytes]]  # by holder, then by owner
    right: Counter[int] = field(default_factory=Counter)  # shares that fitted, by holder

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
        def is_right(seed: Secret) -> bool:
            return keys.commitment(seed, self.terms, number) == self.adverts[number].commitment

        return self._restored(number, is_right)

    def _key(self, number: int) -> X25519PrivateKey:
        def is_right(secret: Secret) -> bool:
            public = X25519PrivateKey.from_private_bytes(secret.reveal()).public_key()
            return public.public_bytes_raw() == self.adverts[number].mask_key

        return X25519PrivateKey.from_private_bytes(self._restored(number, is_right).reveal())

    def _restored(self, number: int, is_right: Callable[[Secret], bool]) -> Secret:
        threshold = self.graph.parameters.threshold
        found = [
            Share(holder, place, self.revealed[holder][number])
            for place, holder in enumerate(self.graph.neighbours(number), 1)
            if number in self.revealed.get(holder, ())
        ]
        if len(found) < threshold:
            raise TooFewError(
                f"{len(found)} shares of client {number}'s secret were revealed, but at least"
                f" {threshold} must be; the round is dropped"
            )
        found.sort(key=lambda share: -self.right[share.holder])
        for chosen in _choices(found, threshold):
            secret = _combined(chosen)
            if is_right(secret):
                self.right.update(share.holder for share in chosen)
                return secret
        raise TooFewError(
            f"the shares of client {number}'s secret do not give what it has advertised: it, or"
            " some of its neighbours, are not honest; the round is dropped"
        )


def _choices(shares: list[Share], threshold: int) -> Iterator[list[Share]]:
    """The first ones, then any, as not all may be right."""
    yield shares[:threshold]
    if len(shares) > threshold:
        random = np.random.default_rng(0)
        for _ in range(TRIES):
            places = np.sort(random.choice(len(shares), threshold, replace=False))
            yield [shares[place] for place in places]


def _combined(shares: list[Share]) -> Secret:
    rows = np.frombuffer(b"".join(share.value for share in shares), np.uint8)
    return Secret(shamir.combine([s.place for s in shares], rows.reshape(len(shares), -1)))
