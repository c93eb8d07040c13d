"""Which phase of secure aggregation a message of the server's is about."""

from __future__ import annotations

from fetchsgd.exchange.messages import SecureCall, SecureWork
from fetchsgd.flower.protocol import from_records
from fetchsgd.secure.frames import Kind, read_header

PHASES = ("advertise", "share", "mask", "agree", "reveal")
ASKS = (Kind.INVITATION, Kind.ROSTER, Kind.DELIVERY, Kind.SURVIVORS, Kind.REQUEST)


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
