"""The ClientApp: a plain client, or fetchsgd's own where a node says so.

    --node-config 'partition-id=0 handout="/path/to/handout"'    a plain client
    --node-config 'partition-id=1 client="fetchsgd"'             ours, to compare with

A plain client needs Flower and numpy alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from plain_client import data, envelope, model
from plain_client.client import Agreement, Kept, answer
from plain_client.weights import Held

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this is, and what it holds."""
    if _is_ours(context):
        from fetchsgd.flower import client

        return client.introduce(message, context)
    greeting = envelope.unpacked(message.content, "greeting")
    if greeting["challenge"]:
        raise ValueError("the server wants proof of who this client is, and this one has no key")
    kept = load(context)
    version = 0 if kept is None else kept.held.version
    hello = envelope.packed(
        "hello", lineage="" if kept is None else kept.lineage,
        client=context.node_config["partition-id"], held=version, signature=b"",
    )  # fmt: skip
    return Message(hello, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round."""
    if _is_ours(context):
        from fetchsgd.flower import client

        return client.train(message, context)
    work, number = envelope.unpacked(message.content, "work"), context.node_config["partition-id"]
    agreed = Agreement.read(Path(context.node_config["handout"]))
    pixels, kinds = data.examples(number)

    def compute(weights: np.ndarray) -> tuple[np.ndarray, float, int]:
        return *model.gradient(weights, pixels, kinds), len(pixels)

    kind, reply, kept = answer(agreed, work, number, load(context), compute)
    save(context, kept)
    alone = not {"fetchsgd", "torch"} & set(sys.modules)
    print(f"round {work['round']}: {kind}, {'alone' if alone else 'NOT alone'}", flush=True)
    return Message(envelope.packed(kind, reply.pop("payload", None), **reply), reply_to=message)


def load(context: Context) -> Kept | None:
    """What was kept in Flower's memory."""
    about = context.state.config_records.get("plain.about")
    if about is None:
        return None
    vector = context.state.array_records["plain.held"]["vector"].numpy()
    return Kept(about["lineage"], Held(about["version"], vector))


def save(context: Context, kept: Kept | None) -> None:
    if kept is None:
        context.state = RecordDict()
        return
    about = ConfigRecord({"lineage": kept.lineage, "version": kept.held.version})
    held = ArrayRecord({"vector": Array(kept.held.vector)})
    context.state = RecordDict({"plain.about": about, "plain.held": held})


def _is_ours(context: Context) -> bool:
    return context.node_config.get("client") == "fetchsgd"
