"""Federations with secure aggregation, without processes; and what may become of their messages."""

from __future__ import annotations

from flower.fakegrid import FakeGrid
from flower.federations import config

from fetchsgd.exchange.messages import ResendRequest, SecureCall, SecureReply, SecureWork
from fetchsgd.flower.keys import make_identities
from fetchsgd.flower.protocol import from_records
from fetchsgd.secure.frames import Kind, read_header

PHASES = ("advertise", "share", "mask", "agree", "reveal")
ASKS = (Kind.INVITATION, Kind.ROSTER, Kind.DELIVERY, Kind.SURVIVORS, Kind.REQUEST)


def secret_federation(out, method="fetchsgd", clients=range(12), **more):
    """Keys and states are beside the run folder; a second one in the same place has the same."""
    keys = out.parent / "keys"
    directory = keys / "directory.json"
    if not directory.exists():
        make_identities(keys, 12)
    given = {
        "upload__sum": "modular", "upload__secure": True, "upload__dropping": 0.2,
        "train__clients_per_round": 6,
        "federation__directory": str(directory), "federation__phase_deadline": 5.0,
        "federation__deadline": 10.0, "federation__wait": 10.0,
    }  # fmt: skip
    grid = FakeGrid(config(out, method, **given | more))
    for client in clients:
        grid.add(client, config=node_config(out, client))
    return grid


def node_config(out, client):
    keys = out.parent / "keys"
    return {
        "identity": str(keys / f"client-{client}"),
        "directory": str(keys / "directory.json"),
        "state": str(out.parent / "state"),
    }


def asked(message):
    """The protocol's message in one of the server's, and the round; None for a greeting."""
    if message.metadata.message_type == "query":
        return None
    content = from_records(message.content, SecureCall, SecureWork)
    payload = content.parts()[1] if isinstance(content, SecureWork) else content.payload
    return content.round, payload


def phase_of(message):
    found = asked(message)
    return None if found is None else ASKS.index(read_header(found[1])[0])


def silent_from(phase, round=None):
    """A client that does not answer from that phase on, of one round or of all."""

    def behave(message, reply):
        found = asked(message)
        if found is None or (round is not None and found[0] != round):
            return reply
        return None if phase_of(message) >= phase else reply

    return behave


def changed_in(phase, change):
    """A client whose answer of one phase is changed: bytes in, bytes out."""

    def behave(message, reply):
        if phase_of(message) != phase or reply.has_error():
            return reply
        content = from_records(reply.content, SecureReply, ResendRequest)
        if isinstance(content, SecureReply):
            array = reply.content["payload"]["wire"]
            data = change(content.payload)
            array.data, array.shape = data, (len(data),)
        return reply

    return behave


def node_of(grid, client):
    return next(node for node in grid.nodes.values() if node.client == client)
