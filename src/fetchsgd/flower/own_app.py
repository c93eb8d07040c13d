"""For Flower apps of your own: a round's messages, and nothing else of a federation.

In the ClientApp, `take_part` answers a message of the server; in the ServerApp's main, `federate`
trains over the nodes of a grid. Model, data and training are the app's. What
`fetchsgd.flower.server` does beyond that, such as resuming, deadlines with spare clients and
distrust, is not here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fetchsgd.errors import UserError
from fetchsgd.exchange.client_update import client_update
from fetchsgd.exchange.own_model import OwnLoss, OwnTraining
from fetchsgd.exchange.plan import Plan
from fetchsgd.exchange.rejections import RejectedError, shown
from fetchsgd.exchange.server import Server, Stepped
from fetchsgd.flower.client_state import InContext
from fetchsgd.flower.protocol import PAYLOAD, STYPE, WIRE, payload_of
from fetchsgd.randomness import numpy_generator

log = logging.getLogger("flwr.fetchsgd")
ATTEMPTS = 3  # at a round to which nobody replies
LOOK_EVERY = 0.5  # seconds


def take_part(
    message: Message,
    context: Context,
    plan: Plan,
    loss: OwnLoss | None = None,
    data: Any = None,
    *,
    train: OwnTraining | None = None,
) -> Message:
    """The reply to a message of `federate`, to be returned from `@app.train()`.

    Args:
        message: as Flower hands it over.
        context: likewise; what the client holds is kept in its state.
        plan: the same as the server's.
        loss, data, train: as for `fetchsgd.client_update`.
    """
    keeper = InContext(context)
    before = keeper.load()
    request = payload_of(message.content)
    reply, state = client_update(request, plan, loss, data, before, train=train)
    if state is not None and state is not before:
        keeper.save(state)
    return Message(_records(reply), reply_to=message)


def federate(
    grid: Grid,
    plan: Plan,
    *,
    rounds: int | None = None,
    fraction: float = 1.0,
    min_nodes: int = 2,
    timeout: float = 600.0,
    after_round: Callable[[Server, Stepped], None] | None = None,
) -> Server:
    """Train over the nodes of a grid, from a ServerApp's main.

    Args:
        grid: as Flower hands it over.
        plan: the same as the clients'.
        rounds: how many; those of the plan by default.
        fraction: how many of the nodes that are there take part in a round, chosen at random.
        min_nodes: wait for so many, and choose no fewer.
        timeout: seconds to wait for nodes, and for the replies of a round.
        after_round: called with the server and what it did, after every round.

    Returns:
        The server, whose `model()` is the trained module.
    """
    rounds = plan.rounds if rounds is None else rounds
    if rounds is None:
        raise UserError("how many rounds? Give federate or the plan rounds=100")
    server = Server(plan)
    clients = _Clients(grid, server, timeout)
    for _ in range(rounds):
        nodes = clients.some(fraction, min_nodes)
        for _ in range(ATTEMPTS):
            clients.ask(nodes)
            if server.replies:
                break
        stepped = server.step()
        log.info(
            "round %d: %d replies, loss %.4f", stepped.round + 1, len(stepped.clients), stepped.loss
        )
        if after_round is not None:
            after_round(server, stepped)
    return server


class _Clients:
    """The nodes of a grid, numbered in the order in which they were first asked."""

    def __init__(self, grid: Grid, server: Server, timeout: float) -> None:
        self.grid, self.server, self.timeout = grid, server, timeout
        self.number_of: dict[int, int] = {}

    def some(self, fraction: float, least: int) -> list[int]:
        """Nodes for the next round; those of a seed, as far as nodes are the same."""
        end = time.monotonic() + self.timeout
        while len(nodes := sorted(self.grid.get_node_ids())) < least:
            if time.monotonic() > end:
                raise UserError(f"{len(nodes)} nodes are there, and min_nodes is {least}")
            time.sleep(LOOK_EVERY)
        count = max(round(fraction * len(nodes)), least, 1)
        seed = self.server.plan.setup.config.train.seed
        generator = numpy_generator(seed, "cohort", self.server.round)
        # Ids of 64 bits would become floats in an array.
        chosen = generator.choice(len(nodes), min(count, len(nodes)), replace=False)
        return [nodes[place] for place in chosen]

    def ask(self, nodes: list[int]) -> None:
        """Until all have replied, or failed, or time is up."""
        requests = {node: self.server.request(self._number(node)) for node in nodes}
        while requests:
            replies = self.grid.send_and_receive(
                [
                    Message(
                        _records(frame), node, MessageType.TRAIN, ttl=self.timeout,
                        group_id=str(self.server.round),
                    )
                    for node, frame in requests.items()
                ],
                timeout=self.timeout,
            )  # fmt: skip
            requests = {}
            for reply in replies:
                node = reply.metadata.src_node_id
                if (again := self._take(node, reply)) is not None:
                    requests[node] = again

    def _take(self, node: int, reply: Message) -> bytes | None:
        if reply.has_error():
            log.warning("node %d fails: %s", node, shown(reply.error.reason))
            return None
        try:
            return self.server.receive(payload_of(reply.content), self._number(node))
        except RejectedError as error:
            log.warning("the reply of node %d is rejected: %s", node, error)
            return None

    def _number(self, node: int) -> int:
        return self.number_of.setdefault(node, len(self.number_of))


def _records(frame: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(frame),), stype=STYPE, data=frame)
    return RecordDict({PAYLOAD: ArrayRecord({WIRE: array})})
