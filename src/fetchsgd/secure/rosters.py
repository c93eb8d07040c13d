"""The roster: which clients are there, and the adverts of a client's neighbours, with proof.

A client believes nothing of it that it cannot check: parameters and ring are its own calculation,
adverts are signed by their owners, and all of them, its own included, are under the root from which
the ring follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fetchsgd.errors import UserError
from fetchsgd.secure import members
from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.frames import HEADER_BYTES, frame, is_signed, open_frame
from fetchsgd.secure.graph import HASH_BYTES, Graph, Merkle, is_under, roster_digest
from fetchsgd.secure.kinds import SIGNATURE_BYTES, Kind
from fetchsgd.secure.messages import Advert, check_distinct, read_advert
from fetchsgd.secure.sizes import ADVERT_BYTES, Sizes
from fetchsgd.secure.terms import Terms


@dataclass(frozen=True)
class Roster:
    """The graph as one client sees it."""

    terms: Terms
    number: int
    graph: Graph
    adverts: Mapping[int, Advert]  # of the neighbours

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        return self.graph.neighbours(self.number)

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.terms, self.graph)


def sizes_of(terms: Terms, graph: Graph) -> Sizes:
    return Sizes(
        len(terms.cohort), len(graph.clients), graph.parameters.degree,
        terms.cells, terms.bits, terms.totals,
    )  # fmt: skip


def make_graph(terms: Terms, clients: tuple[int, ...], root: bytes) -> Graph:
    bits = members.to_bits(frozenset(clients), terms.cohort)
    return Graph(clients, terms.parameters(len(clients)), roster_digest(terms.digest, bits, root))


@dataclass(frozen=True)
class RosterWriter:
    """The server's: one tree, and a message for each client."""

    terms: Terms
    graph: Graph
    tree: Merkle
    adverts: Mapping[int, Advert]

    @cached_property
    def _everyone(self) -> bytes:
        return members.to_bits(frozenset(self.graph.clients), self.terms.cohort)

    @cached_property
    def _cards(self) -> dict[int, bytes]:
        paths = {} if self.graph.parameters.complete else self._paths
        return {
            number: advert.body + advert.signature + paths.get(number, b"")
            for number, advert in self.adverts.items()
        }

    @cached_property
    def _paths(self) -> dict[int, bytes]:
        return {number: self.tree.path(at) for at, number in enumerate(self.graph.clients)}

    def message(self, number: int) -> bytes:
        own = b"" if self.graph.parameters.complete else self._paths[number]
        cards = (self._cards[other] for other in self.graph.neighbours(number))
        return frame(Kind.ROSTER, number, self.terms, self._everyone, self.tree.root, own, *cards)


def write_rosters(terms: Terms, adverts: Mapping[int, Advert]) -> tuple[Graph, RosterWriter]:
    clients = tuple(sorted(adverts))
    tree = Merkle([adverts[number].message(terms) for number in clients])
    graph = make_graph(terms, clients, tree.root)
    return graph, RosterWriter(terms, graph, tree, adverts)


def read_roster(
    message: bytes, terms: Terms, own: Advert, directory: Mapping[int, bytes], known: bool = False
) -> Roster:
    """`known` is one that was checked before, and kept by the client itself."""
    number = own.client
    size = members.num_bytes(len(terms.cohort))
    listed = message[HEADER_BYTES : HEADER_BYTES + size]
    clients = tuple(sorted(members.from_bits(listed, terms.cohort, "the roster")))
    if number not in clients:
        raise RefusedError(f"the roster leaves out client {number}, to whom it was sent")
    root = message[HEADER_BYTES + size : HEADER_BYTES + size + HASH_BYTES]
    try:
        graph = make_graph(terms, clients, root)
    except UserError as error:
        raise RefusedError(f"the roster is not one of these terms: {error}") from error
    sizes = sizes_of(terms, graph)
    body = open_frame(message, Kind.ROSTER, terms, number, sizes.body(Kind.ROSTER))
    start = size + HASH_BYTES
    paths = {number: bytes(body[start : start + sizes.path])}
    adverts = {}
    start += sizes.path
    for other in graph.neighbours(number):
        card = bytes(body[start : start + sizes.card])
        start += sizes.card
        signature = card[ADVERT_BYTES : ADVERT_BYTES + SIGNATURE_BYTES]
        adverts[other] = read_advert(other, card[:ADVERT_BYTES], signature)
        paths[other] = card[ADVERT_BYTES + SIGNATURE_BYTES :]
    roster = Roster(terms, number, graph, adverts)
    if not known:
        _check(roster, own, paths, root, directory)
    return roster


def _check(
    roster: Roster,
    own: Advert,
    paths: Mapping[int, bytes],
    root: bytes,
    directory: Mapping[int, bytes],
) -> None:
    terms, graph = roster.terms, roster.graph
    shown = {**roster.adverts, own.client: own}
    check_distinct(shown.values())
    for other, advert in roster.adverts.items():
        key = directory.get(other)
        if key is None or not is_signed(advert.signed(terms), advert.signature, terms, key):
            raise RefusedError(f"the advert of client {other} is not signed by it")
    if graph.parameters.complete:
        proven = Merkle([shown[number].message(terms) for number in graph.clients]).root == root
    else:
        places = {number: place for place, number in enumerate(graph.clients)}
        proven = all(
            is_under(root, shown[number].message(terms), places[number], path)
            for number, path in paths.items()
        )
    if not proven:
        raise RefusedError("the roster's adverts are not those from which its graph follows")
