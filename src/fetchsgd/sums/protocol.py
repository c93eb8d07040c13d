"""What secure aggregation adds to the messages of a round: keys, shares and who is in.

A count by the sizes of what the protocol of Bell et al. (2020) sends, for a ledger that counts
messages which nobody sends. Masks are free: a masked cell has as many bits as a plain one. Each
client has `degree` neighbours, logarithmically many.
"""

from __future__ import annotations

import math
from typing import NamedTuple

KEY, SIGNATURE, HASH, SHARE = 32, 64, 32, 33
HEADER = 64  # of each message
TAG = 28  # nonce and tag of an encrypted pair of shares
# Neighbours for each doubling of the cohort; at least this many where there are so many clients.
PER_DOUBLING, LEAST = 6, 20


class ProtocolBytes(NamedTuple):
    """Of all clients of a round together."""

    up: int
    down: int


def usual_degree(clients: int) -> int:
    """Neighbours of a client: logarithmically many, and all where there are few."""
    wanted = max(LEAST, PER_DOUBLING * math.ceil(math.log2(max(clients, 2))))
    return max(min(wanted, clients - 1), 0)


def protocol_bytes(clients: int, degree: int | None = None) -> ProtocolBytes:
    """Everything but the masked cells, if nobody drops out."""
    k = usual_degree(clients) if degree is None else degree
    sealed = TAG + 2 * SHARE
    up = (
        2 * KEY + SIGNATURE,  # two keys, signed
        k * sealed,  # shares of two secrets for each neighbour
        SIGNATURE,  # who is in
        k * SHARE,  # a share of each neighbour
    )
    down = (
        k * (2 * KEY + SIGNATURE),  # the neighbours' keys
        k * sealed,  # their shares
        -(-clients // 8),  # who is in
        k * SIGNATURE,  # that they say the same
    )
    return ProtocolBytes(*(clients * sum(HEADER + part for part in way) for way in (up, down)))
