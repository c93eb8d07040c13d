"""Which node is which client, and who is asked in a round."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fetchsgd.randomness import numpy_generator
from fetchsgd.server.sampling import Sampler


class Membership:
    """Nodes that are there. A node says which client it is; of two that say the same, the last.

    A SuperNode that restarts without a key comes back as another node, while its former self still
    counts as present for a while: so the last one it must be.
    """

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.client_of: dict[int, int] = {}  # node -> client
        self.node_of: dict[int, int] = {}  # client -> node
        self.greeted: set[int] = set()  # nodes that were asked who they are, or have said so
        self.displaced: dict[int, int] = {}  # node -> client, of which there is a later node

    def seen(self, nodes: Iterable[int]) -> tuple[list[int], list[int]]:
        """These are connected: those to greet, and the clients that have left."""
        present = set(nodes)
        left = []
        for node in [node for node in self.client_of if node not in present]:
            client = self.client_of.pop(node)
            if self.node_of.get(client) == node:
                del self.node_of[client]
                left.append(client)
        self.greeted &= present
        self.displaced = {n: client for n, client in self.displaced.items() if n in present}
        for node in [node for node, client in self.displaced.items() if client in left]:
            self.greeted.discard(node)  # it may well be that client after all
            del self.displaced[node]
        new = sorted(present - self.greeted)
        self.greeted |= present
        return new, left

    def can_be(self, client: int) -> bool:
        return 0 <= client < self.num_clients

    def introduce(self, node: int, client: int) -> bool:
        """The node is that client; False where no such client can be."""
        if not self.can_be(client):
            return False
        before = self.node_of.get(client)
        if before is not None and before != node:
            self.client_of.pop(before, None)
            self.displaced[before] = client
        self.displaced.pop(node, None)
        self.client_of[node] = client
        self.node_of[client] = node
        return True

    def forget(self, node: int) -> None:
        """It did not say who it is: greet it again when it is seen next."""
        self.greeted.discard(node)

    def rivals(self, client: int) -> list[int]:
        """Other nodes that have said they are that client, and still count as present."""
        return [node for node, displaced in self.displaced.items() if displaced == client]

    @property
    def clients(self) -> set[int]:
        return set(self.node_of)


def how_many(per_round: int, oversample: float) -> int:
    """Clients to ask, so that enough of them reply in time."""
    return math.ceil(per_round * oversample - 1e-9)


def order_of_asking(sampler: Sampler, round: int) -> list[int]:
    """All clients: first the round's own, as in simulation, then the others as spares.

    It depends on seed and round alone; who is not there, or still busy, is passed over.
    """
    own: list[int] = sampler.cohort(round).tolist()
    spares = numpy_generator(sampler.seed, "spare", round).permutation(sampler.num_clients)
    taken = set(own)
    return own + [int(client) for client in spares if int(client) not in taken]
