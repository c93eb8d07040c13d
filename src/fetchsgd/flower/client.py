"""The ClientApp: says who it is, and takes part in rounds.

Flower starts a process for every message. What a greeting does not need is loaded for work only.
"""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fetchsgd.errors import UserError
from fetchsgd.exchange.messages import Greeting, Hello, Work
from fetchsgd.flower.client_state import keeper
from fetchsgd.flower.identities import own_identity
from fetchsgd.flower.proofs import how_to_prove, proven
from fetchsgd.flower.protocol import from_records, to_records

log = logging.getLogger("flwr.fetchsgd")
app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this is, and what it holds; with proof where the server wants it."""
    client = client_number(context.node_config)
    greeting = from_records(message.content, Greeting)
    kept = keeper(context, client).about()
    hello = Hello(kept.lineage, client, kept.version)
    if greeting.challenge:
        identity = own_identity(context.node_config, client)
        if identity is None:
            log.warning(
                "the server wants proof that this node is client %d and will refuse it; %s",
                client, how_to_prove(client),
            )  # fmt: skip
        else:
            hello = proven(hello, greeting, context.node_id, identity)
    return Message(to_records(hello), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round's work."""
    from fetchsgd.flower.client_round import take_part

    client = client_number(context.node_config)
    work = from_records(message.content, Work)
    configs = context.run_config, context.node_config
    answer = take_part(work, client, *configs, keeper(context, client))
    return Message(to_records(answer), reply_to=message)


def client_number(node_config: dict[str, Any]) -> int:
    """Which of the task's clients this node is."""
    number = node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise UserError(
            f"partition-id must be a client's number, got {number!r}; start the SuperNode with "
            "--node-config 'partition-id=0'"
        )
    return number
