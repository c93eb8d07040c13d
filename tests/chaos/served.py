"""A federation in two processes: clients behind a socket, and servers that come and go.

The clients' process has the tests' grid, which calls ClientApps when a message comes; the server's
has a grid that asks it over the socket, in Flower's own bytes. So a server can be killed while what
clients hold lives on, as with machines of their own.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from random import Random
from typing import Any

import torch
from chaos.forks import STAGES, Death, fork, outcome
from flower.fakegrid import FakeGrid
from flower.federations import config
from flwr.app import Error, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from fetchsgd.flower import client_round  # noqa: F401  (imported once, not in every fork)
from fetchsgd.flower.server import federate
from fetchsgd.flower.server_round import Clock
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.setup import Setup

NUM = 4  # clients, all of them in every round


@dataclass(frozen=True)
class Clients:
    """Clients with a folder each; with a seed they die now and then."""

    folder: Path
    seed: int | None = None

    def run_config(self, out: Path) -> dict[str, Any]:
        more = {
            "federation.clients": NUM,
            "train.clients_per_round": NUM,
            "federation.min_replies": NUM,
        }
        more |= {"federation.attempts": 50, "federation.deadline": 5.0, "train.epochs": 9.0}
        return config(out) | more | {"settings": "download.grid=steps upload.bits=8"}

    def server(self, address: str) -> Callable[[Path], None]:
        def start(out: Path) -> None:
            torch.set_num_threads(1)
            settings, ours = read_settings(self.run_config(out))
            grid = Asking(Client(address))
            federate(grid, Setup(settings, ours.clients), ours, grid.clock)

        return start

    def told(self) -> dict[str, int]:
        """How clients have died."""
        path = self.folder / "deaths"
        return dict(Counter(path.read_text().split("\n")[:-1])) if path.exists() else {}


class Asking:
    """The server's grid. Waiting costs nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.time = connection, 0.0

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.time += seconds

    def get_node_ids(self) -> list[int]:
        return self._ask("nodes")[0]

    def push_messages(self, messages: list[Message]) -> list[str]:
        return self._ask("push", [], messages)[0]

    def pull_messages(self, names: list[str]) -> list[Message]:
        self.time += 0.01
        return self._ask("pull", list(names))[1]

    def _ask(self, what: str, names: list[str] = (), messages: list[Message] = ()) -> Any:
        send(self.connection, [what, *names], messages)
        return receive(self.connection)


def send(connection: Connection, words: list[Any], messages: list[Message] = ()) -> None:
    connection.send_bytes(json.dumps([words, len(messages)]).encode())
    for message in messages:
        connection.send_bytes(message_to_proto(message).SerializeToString())


def receive(connection: Connection) -> tuple[list[Any], list[Message]]:
    words, count = json.loads(connection.recv_bytes())
    found = [ProtoMessage.FromString(connection.recv_bytes()) for _ in range(count)]
    return words, [message_from_proto(proto) for proto in found]


@contextmanager
def serve(clients: Clients) -> Iterator[str]:
    """Clients in a process of their own; yields where they are to be reached."""
    clients.folder.mkdir(parents=True)
    address = str(clients.folder / "socket")
    listener = Listener(address)
    child = fork(lambda: _answer(listener, clients), log=clients.folder.with_name("clients.log"))
    listener._listener._unlink = None  # type: ignore[attr-defined]
    try:
        yield address
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        listener.close()


def _answer(listener: Listener, clients: Clients) -> None:
    torch.set_num_threads(1)
    grid = Mortal(clients.run_config(Path("unused")), clients)
    for number in range(NUM):
        grid.add(number, config={"state": str(clients.folder / "state")})
    while True:
        connection = listener.accept()
        try:
            while True:
                (what, *names), messages = receive(connection)
                if what == "push":
                    send(connection, [*grid.push_messages(messages)])
                elif what == "pull":
                    send(connection, [], grid.pull_messages(names))
                else:
                    send(connection, grid.get_node_ids())
        except (EOFError, OSError):  # the server has died: there will be another
            connection.close()


class Mortal(FakeGrid):
    """With a seed, clients answer in processes that may die, and nodes restart as others."""

    def __init__(self, run_config: dict[str, Any], clients: Clients) -> None:
        super().__init__(run_config)
        self.clients = clients
        self.random = None if clients.seed is None else Random(clients.seed)

    def _answer(self, node: Any, message: Message) -> Message:
        if self.random is None:
            return super()._answer(node, message)
        kind, chance = message.metadata.message_type, self.random.random()
        if chance > 0.35:
            return super()._answer(node, message)
        if chance < 0.1:
            return self._restarted(node, message)
        death = Death(0, self.random.choice(STAGES))
        if kind == "query" or self.random.random() < 0.3:
            death = Death(seconds=self.random.uniform(0, 0.02 if kind == "query" else 0.1))
        return self._dying(node, message, death)

    def _dying(self, node: Any, message: Message, death: Death) -> Message:
        answered = outcome(fork(lambda: self._handle(node, message), death), death)
        if answered == "killed":
            kind = "greeting" if message.metadata.message_type == "query" else "work"
            self._tell(f"{kind}, {death.stage or 'any time'}")
        # Its reply was not sent, whether it died before or after it had saved.
        return Message(Error(0, "the process has ended"), reply_to=message)

    def _handle(self, node: Any, message: Message) -> None:
        is_query = message.metadata.message_type == "query"
        (node.program.introduce if is_query else node.program.train)(message, node.context)

    def _restarted(self, node: Any, message: Message) -> Message:
        """The SuperNode dies and comes back; sometimes its disk is new, too."""
        self._tell("node")
        node.online = False
        if self.random.random() < 0.5:
            for path in (self.clients.folder / "state").glob(f"client-{node.client}.*"):
                path.unlink()
        self.add(node.client, config={"state": str(self.clients.folder / "state")})
        return Message(Error(0, "the node has ended"), reply_to=message)

    def _tell(self, what: str) -> None:
        with (self.clients.folder / "deaths").open("a") as file:
            file.write(f"{what}\n")
