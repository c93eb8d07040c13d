"""Clients that send what `behave` in their node config says, instead of what they should.

Several ways, such as "nan-scaled", are taken in turn, one in each round.
"""

from dataclasses import replace

import torch
from flower.watched import stand_still, watch_client
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from fetchsgd.flower import client
from fetchsgd.flower.protocol import HEADER, PAYLOAD, STYPE, WIRE, payload_of
from fetchsgd.wire import Floats, SketchTable, decode, encode

watch_client()
app = ClientApp()


class NotProtobuf(ConfigRecord):
    """A record that Flower carries, and cannot read."""

    def deflate(self) -> bytes:
        return add_header_to_object_body(object_body=b"\xff" * 40, obj=self)


NotProtobuf.__qualname__ = ConfigRecord.__qualname__  # what Flower writes into its head

HEADERS = {"examples": ("examples", 10**6), "loss": ("loss", 1e308)}


@app.query()
def query(message: Message, context: Context) -> Message:
    return client.introduce(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    ways = str(context.node_config.get("behave", "well")).split("-")
    way = ways[int(message.metadata.group_id) % len(ways)]  # of this round
    stand_still(message, context.node_config["partition-id"])
    reply = client.train(message, context)
    if way == "well" or PAYLOAD not in reply.content:
        return reply
    if way == "unreadable":
        reply.content["extra"] = NotProtobuf()
    elif way in HEADERS:
        name, value = HEADERS[way]
        reply.content[HEADER][name] = value
    else:
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
    cells = bad_cells(table, way).flatten()
    return encode(replace(table, values=Floats(cells)))


def bad_cells(table: SketchTable, way: str) -> torch.Tensor:
    if way in ("nan", "huge"):
        value = {"nan": float("nan"), "huge": 1e30}[way]
        return torch.full((table.rows, table.cols), value)
    assert isinstance(table.values, Floats)
    cells = table.values.values.clone().view(table.rows, table.cols)
    cells[: table.rows if way == "scaled" else table.rows // 2] *= 1e6  # or half of its rows
    return cells
