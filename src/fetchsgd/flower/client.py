"""The ClientApp: apply the update, do the local work, send what the method sends.

What a client holds lives in Flower's `context.state`, which is the SuperNode's memory. A node that
has lost it says so, and gets everything in one message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fetchsgd.errors import UserError
from fetchsgd.flower.held import Held, fits, updated
from fetchsgd.flower.messages import Answer, Asks, Hello, Work
from fetchsgd.flower.protocol import from_records, to_records
from fetchsgd.flower.run import FederatedRun, checksum
from fetchsgd.flower.settings import read_settings
from fetchsgd.flower.work import first_memory, work
from fetchsgd.methods import Memory
from fetchsgd.wire import SparseUpdate, decode, encode

ABOUT, VECTORS = "fetchsgd.about", "fetchsgd.vectors"

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this is, and what it holds."""
    lineage, version = _about(context)
    hello = Hello(lineage, client_number(context.node_config), version)
    return Message(to_records(hello), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round's work."""
    task = from_records(message.content, Work)
    config, federation = read_settings(context.run_config, context.node_config)
    run = FederatedRun(config, federation.clients)
    client = client_number(context.node_config)
    if task.digest != run.digest:
        raise UserError(
            "the server has other settings or other initial weights than this client; are the "
            "versions of fetchsgd and torch the same, and the task?"
        )
    update = decode(task.payload)
    if not isinstance(update, SparseUpdate):
        raise TypeError("the server's payload is not an update")
    held = load_held(context, task.lineage, run.device)
    if not fits(held, update):
        return _ask(message, task, client, 0 if held is None else held.version)
    held, weights = updated(held, update, run.grid, run.origin)
    if checksum(weights) != task.checksum:
        if update.since == 0:
            raise ValueError("weights made from the seed and a whole update are not the server's")
        context.state = RecordDict()
        return _ask(message, task, client, 0)
    memory = load_memory(context, task.lineage, run)
    done = work(run, weights, client, task.round, task.rate, memory)
    keep(context, task.lineage, held, done.memory)
    answer = Answer(
        run.digest, task.lineage, task.round, client, done.examples, done.loss,
        encode(done.payload),
    )  # fmt: skip
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


def _ask(message: Message, task: Work, client: int, held: int) -> Message:
    asks = Asks(task.digest, task.lineage, task.round, client, held)
    return Message(to_records(asks), reply_to=message)


def _about(context: Context) -> tuple[str, int]:
    about = context.state.config_records.get(ABOUT)
    if about is None:
        return "", 0
    return str(about["lineage"]), int(about["version"])  # type: ignore[arg-type]


def load_held(context: Context, lineage: str, device: torch.device) -> Held | None:
    """What was kept, if it belongs to the same run."""
    kept, version = _about(context)
    arrays = context.state.array_records.get(VECTORS)
    if kept != lineage or arrays is None:
        return None
    return Held(version, _tensor(arrays["held"], device))


def load_memory(context: Context, lineage: str, run: FederatedRun) -> Memory | None:
    """Error and momentum of the client's own, where its method keeps them."""
    first = first_memory(run.method, run.model.dim, run.device)
    arrays = context.state.array_records.get(VECTORS)
    if first is None or arrays is None or _about(context)[0] != lineage or "error" not in arrays:
        return first
    return Memory(*(_tensor(arrays[name], run.device) for name in Memory._fields))


def keep(context: Context, lineage: str, held: Held, memory: Memory | None) -> None:
    vectors = {"held": held.vector}
    if memory is not None:
        vectors |= memory._asdict()
    context.state = RecordDict(
        {
            ABOUT: ConfigRecord({"lineage": lineage, "version": held.version}),
            VECTORS: ArrayRecord({n: Array(v.cpu().numpy()) for n, v in vectors.items()}),
        }
    )


def _tensor(array: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(array.numpy())).to(device)
