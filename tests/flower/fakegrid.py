"""Flower without processes: a grid that calls the ClientApp when it is asked, and a clock.

Each node has a context of its own, as a SuperNode has. `behave` decides what becomes of a message:
the reply as it is, another one, or none; and after how many looks for replies it arrives. As with
Flower's own grid, a reply that cannot be read loses all replies that are pulled in the same call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fetchsgd.flower import client
from fetchsgd.flower.server_round import Clock

NEVER = 10**9

# In a real process Flower sets these.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Unreadable:
    """A reply that Flower cannot make a message of."""


@dataclass
class Node:
    client: int
    context: Context
    online: bool = True
    delay: int = 0  # looks for replies until one arrives
    behave: object = None  # (message, reply) -> reply or None
    program: object = client  # what answers, as a ClientApp's module


@dataclass
class FakeGrid:
    run_config: dict
    nodes: dict = field(default_factory=dict)
    replies: dict = field(default_factory=dict)  # id -> (looks left, reply)
    time: float = 0.0
    count: int = 0
    kinds: list = field(default_factory=list)
    before_look: object = None
    is_new_look: bool = True  # time has passed, or a message has left, since the last pull

    def add(self, number, node=None, config=None, **more):
        node = len(self.nodes) + 100 if node is None else node
        config = {"partition-id": number} | (config or {})
        context = Context(1, node, config, RecordDict(), self.run_config)
        self.nodes[node] = Node(number, context, **more)
        return node

    def lose_state(self, node):
        self.nodes[node].context.state = RecordDict()

    @property
    def clock(self):
        return Clock(lambda: self.time, self._sleep)

    def _sleep(self, seconds):
        self.time += seconds
        self.is_new_look = True

    def get_node_ids(self):
        return [number for number, node in self.nodes.items() if node.online]

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        self.count += 1
        self.is_new_look = True
        name = f"message-{self.count}"
        message.metadata.__dict__["_message_id"] = name
        self.kinds.append((message.metadata.dst_node_id, message.metadata.message_type))
        node = self.nodes[message.metadata.dst_node_id]
        if node.online:
            reply = self._answer(node, message)
            if reply is not None:
                self.replies[name] = [node.delay, reply]
        return name

    def _answer(self, node, message):
        is_query = message.metadata.message_type == "query"
        handler = node.program.introduce if is_query else node.program.train
        try:
            reply = handler(message, node.context)
        except Exception as error:
            reply = Message(Error(0, str(error)), reply_to=message)
        return reply if node.behave is None else node.behave(message, reply)

    def pull_messages(self, names):
        if self.is_new_look:
            self.is_new_look = False
            self.time += 0.3
            if self.before_look is not None:
                self.before_look()
        found = []
        for name in names:
            if name not in self.replies:
                continue
            if self.replies[name][0] <= 0:
                found.append(self.replies.pop(name)[1])
            else:
                self.replies[name][0] -= 1
        if any(isinstance(reply, Unreadable) for reply in found):
            raise ValueError("Error parsing message\nround 3 of 3: 12 replies")
        return found
