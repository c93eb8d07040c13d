"""The ClientApp: says who it is, and takes part in rounds.

Flower starts a process for every message. What a greeting does not need is loaded for work only.
"""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fetchsgd.errors import UserError
from fetchsgd.exchange.messages import Content, Greeting, Hello, SecureCall, SecureWork, Work
from fetchsgd.flower.client_state import Keeper, keeper
from fetchsgd.flower.identities import own_identity
from fetchsgd.flower.proofs import how_to_prove, proven
from fetchsgd.flower.protocol import from_records, to_records
from fetchsgd.flower.secure.state import forget_if_over

log = logging.getLogger("flwr.fetchsgd")
app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this is, and what it holds; with proof where the server wants it."""
    client = client_number(context.node_config)
    greeting = from_records(message.content, Greeting)
    kept = keeper(context, client).about()
    if (at := message.metadata.group_id).isdecimal():
        forget_if_over(context.node_config, client, greeting.lineage, int(at))
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
    """A round's work, or one of the five messages of a round with secure aggregation."""
    client = client_number(context.node_config)
    asked: Content = from_records(message.content, Work, SecureCall, SecureWork)
    configs = context.run_config, context.node_config
    answer = _answer(asked, client, *configs, keeper(context, client))
    return Message(to_records(answer), reply_to=message)


def _answer(
    asked: Content,
    client: int,
    run_config: dict[str, Any],
    node_config: dict[str, Any],
    keeper: Keeper,
) -> Content:
    if isinstance(asked, SecureCall | SecureWork):
        from fetchsgd.flower.secure import take_part as secure_part

        return secure_part.take_part(asked, client, run_config, node_config, keeper)
    from fetchsgd.flower import client_round

    assert isinstance(asked, Work)
    if node_config.get("secure") is True:
        raise UserError("this node takes part in rounds with secure aggregation alone")
    return client_round.take_part(asked, client, run_config, node_config, keeper)


def client_number(node_config: dict[str, Any]) -> int:
    """Which of the task's clients this node is."""
    number = node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise UserError(
            f"partition-id must be a client's number, got {number!r}; start the SuperNode with "
            "--node-config 'partition-id=0'"
        )
    return number
