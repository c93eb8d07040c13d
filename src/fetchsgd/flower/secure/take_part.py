"""A client's part in a round of secure aggregation: five messages, five processes, one state.

The model comes with the third message, and the vector that follows from it leaves under masks; it
is written nowhere. What the protocol refuses is an error to Flower: to the server this client has
dropped out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fetchsgd.exchange.messages import ResendRequest, SecureCall, SecureReply, SecureWork
from fetchsgd.flower.client_state import Keeper
from fetchsgd.flower.secure.participant import SecureParticipant


def take_part(
    content: SecureCall | SecureWork,
    client: int,
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    keeper: Keeper,
) -> SecureReply | ResendRequest:
    """The answer to a message of the server."""
    own = SecureParticipant.of(client, node_config, content.lineage)
    if isinstance(content, SecureCall):
        answer = own.answer(content.payload)
    else:
        # Torch and the client's data are loaded for this one alone.
        from fetchsgd.flower.secure.work import masked

        found = masked(own, content, run_config, node_config, keeper)
        if isinstance(found, ResendRequest):
            return found
        answer = found
    return SecureReply(content.lineage, content.round, client, answer)
