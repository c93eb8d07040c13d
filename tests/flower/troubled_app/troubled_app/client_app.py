"""Clients that send what `behave` in their node config says, instead of what they should."""

import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fetchsgd.flower import client
from fetchsgd.flower.protocol import PAYLOAD, STYPE, WIRE, payload_of
from fetchsgd.wire import Floats, SketchTable, decode, encode

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return client.introduce(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = client.train(message, context)
    ways = str(context.node_config.get("behave", "well")).split("-")
    way = ways[int(message.metadata.group_id) % len(ways)]  # of this round
    if way == "well" or PAYLOAD not in reply.content:
        return reply
    data = bad_payload(payload_of(reply.content), way)
    array = Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
    reply.content[PAYLOAD] = ArrayRecord({WIRE: array})
    return reply


def bad_payload(good: bytes, way: str) -> bytes:
    if way == "random":
        generator = torch.Generator().manual_seed(0)
        return bytes(torch.randint(256, (len(good),), generator=generator).tolist())
    table = decode(good)
    assert isinstance(table, SketchTable)
    value = {"nan": float("nan"), "huge": 1e30}[way]
    cells = Floats(torch.full((table.rows * table.cols,), value))
    return encode(
        SketchTable(table.dim, table.rows, table.cols, table.block, table.seed, cells, table.round)
    )
