"""Campaign "load": a thousand replies of a megabyte at once, through the server's own loop.

A generator in the place of Flower's grid answers every message at once: nodes introduce themselves,
and replies are whole messages of the run's own format, a fresh copy each. What it costs itself is
measured and taken off. Promised: every reply is counted, memory is flat over rounds and bounded by
one reply and one sum, however many replies wait; and how many bytes a second one core merges.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flower import fakegrid  # noqa: F401  (names the task to Flower, as its processes do)
from flwr.app import Message

from fetchsgd.exchange.messages import Answer, Greeting, Hello, Work
from fetchsgd.flower.protocol import from_records, to_records
from fetchsgd.flower.server import federate
from fetchsgd.flower.server_round import Clock
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.setup import Setup
from fetchsgd.wire import encode

# A megabyte each; the entropy coder makes those of few bits smaller than that.
WAYS = {
    "floats": "method.cols=52429",
    "bfloat16": "method.cols=104858 upload.bits=16",
    "8 bits": "method.cols=209715 upload.bits=8",
    "4 bits": "method.cols=419430 upload.bits=4",
    "2 bits": "method.cols=838861 upload.bits=2",
}
TEMPLATES = 4  # different replies of a round
SAMPLE_EVERY = 10
# In sizes of a reply's numbers. The sum has two, and so have a mean, its checkpoint and its step.
MOST_GROWTH, MOST = 3.0, 16.0
ALLOCATOR = 48.0  # MB that the allocator keeps for itself


@dataclass
class Generator:
    """A grid whose clients have all answered before anybody looks."""

    setup: Setup
    clients: int
    out: dict[str, Message] = field(default_factory=dict)
    seconds: float = 0.0  # of processor time, from handing over a reply to the next call
    handed_over: float | None = None
    sent_bytes: int = 0
    memory: list[float] = field(default_factory=list)  # MB, while replies are merged
    templates: list[bytes] = field(default_factory=list)
    round: int = -1
    timed_replies: int = 0
    count: int = 0

    def get_node_ids(self) -> list[int]:
        self.handed_over = None  # a new round: not the reply's time any more
        return [1000 + client for client in range(self.clients)]

    def push_messages(self, messages: list[Message]) -> list[str]:
        self._look_at_the_clock()
        names = []
        for message in messages:
            self.count += 1
            names.append(f"message-{self.count}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.out[names[-1]] = message
        return names

    def pull_messages(self, names: list[str]) -> list[Message]:
        self._look_at_the_clock()
        found = [self._reply(self.out.pop(name)) for name in names if name in self.out]
        if found and self.templates:
            self.handed_over = time.process_time()
        return found

    def _look_at_the_clock(self) -> None:
        """What the server has done with the last reply is over; the last of a round is left out."""
        if self.handed_over is not None:
            self.seconds += time.process_time() - self.handed_over
            self.timed_replies += 1
        self.handed_over = None

    def _reply(self, message: Message) -> Message:
        asked: Any = from_records(message.content, Work, Greeting)
        if isinstance(asked, Greeting):
            hello = Hello("", message.metadata.dst_node_id - 1000, 0)
            return Message(to_records(hello), reply_to=message)
        self._prepare(asked.round)
        payload = bytes(bytearray(self.templates[asked.client % TEMPLATES]))
        self.sent_bytes += len(payload)
        if asked.client % SAMPLE_EVERY == 0:
            self.memory.append(resident())
        answer = Answer(asked.digest, asked.lineage, asked.round, asked.client, 1, 1.0, payload)
        return Message(to_records(answer), reply_to=message)

    def _prepare(self, round: int) -> None:
        if round == self.round:
            return
        self.round, self.templates = round, []
        generator = torch.Generator().manual_seed(round)
        for client in range(TEMPLATES):
            vector = torch.randn(self.setup.model.dim, generator=generator)
            written = self.setup.method.message.write(
                vector, None, client, round, self.setup.upload(round, 0.0)
            )
            self.templates.append(encode(written))


def resident() -> float:
    """MB of this process in memory, without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def campaign(
    seed: int, replies: int, rounds: int, folder: Path, way: str, clock: Clock | None = None
) -> dict[str, Any]:
    """Rounds of so many replies each, in one of the formats.

    clock: by which deadlines pass; what has come counts, however long merging takes.
    """
    torch.set_num_threads(1)
    out = folder / way.replace(" ", "-")
    settings, ours = read_settings({
        "task.name": "chaos.wide:wide", "federation.out": str(out), "train.seed": seed,
        "task.clients": replies, "train.clients_per_round": replies, "train.epochs": float(rounds),
        "federation.min_replies": replies, "federation.poll": 0.01, "settings": WAYS[way],
    })  # fmt: skip
    setup = Setup(settings, ours.clients)
    grid = Generator(setup, replies)
    result = federate(grid, setup, ours, clock or Clock())
    counts = result["federation"]["counts"]
    assert counts["replies"] == replies * rounds, counts
    assert counts["received_bytes"] == grid.sent_bytes
    per_reply = grid.sent_bytes / (replies * rounds)
    each = grid.seconds / grid.timed_replies
    return {
        "campaign": "load", "seed": seed, "format": way, "replies": replies, "rounds": rounds,
        "reply_mb": round(per_reply / 1e6, 3), "ms_per_reply": round(1000 * each, 2),
        "mb_per_second": round(per_reply / each / 1e6), **_flat(grid, setup, rounds),
    }  # fmt: skip


def _flat(grid: Generator, setup: Setup, rounds: int) -> dict[str, Any]:
    """Memory does not grow while replies come, and stays near where it stood before the first."""
    numbers = setup.method.message.numbers * 4 / 1e6  # MB of one reply as floats
    size = len(grid.memory) // rounds
    later = [grid.memory[size * n : size * (n + 1)] for n in range(1, rounds)]
    growth = max(median(each[size // 2 :]) - median(each[: size // 2]) for each in later)
    beyond = max(grid.memory) - grid.memory[0]
    assert growth <= MOST_GROWTH * numbers, f"memory grows by {growth:.1f} MB in a round"
    assert beyond <= ALLOCATOR + MOST * numbers, f"{beyond:.1f} MB more than before the first reply"
    return {
        "reply_as_floats_mb": round(numbers, 2), "round_mb": round(grid.sent_bytes / rounds / 1e6),
        "memory_growth_in_a_round_mb": round(growth, 2), "memory_beyond_start_mb": round(beyond, 1),
    }  # fmt: skip
