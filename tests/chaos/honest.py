"""Honest replies of a small federation, and what the server expects of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flower.federations import federation, only_training, train

from fetchsgd.exchange.agreement import digest
from fetchsgd.exchange.merging import Expected
from fetchsgd.exchange.messages import Answer
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.setup import Setup

# Each sends something else: sketches and vectors, of floats and of levels, and chosen coordinates.
WAYS = {
    "sketch-floats": ("fetchsgd", ""),
    "sketch-8-bits": ("fetchsgd", "upload.bits=8"),
    "sketch-2-bits": ("fetchsgd", "upload.bits=2"),
    "vector-levels": ("uncompressed", "upload.quantiser=shared_step upload.density=0.3"),
    "chosen": ("local_topk", ""),
}


@dataclass(frozen=True)
class Captured:
    """A reply of the first round that was accepted."""

    answer: Answer
    client: int
    expected: Expected


def captured(folder: Path) -> list[Captured]:
    return [_captured(folder / name, *way) for name, way in WAYS.items()]


def _captured(out: Path, method: str, settings: str) -> Captured:
    grid = federation(out, method, train__epochs=1.0 / 3, settings=settings)
    answers: list[Answer] = []

    def keep(reply: object) -> object:
        answers.append(from_records(reply.content, Answer))
        return reply

    for node in grid.nodes.values():
        node.behave = only_training(keep)
    train(grid)
    config, ours = read_settings(grid.run_config)
    setup = Setup(config, ours.clients)
    first = answers[0]
    expected = Expected(
        setup.method.message, setup.quantiser, digest(setup), first.lineage, 0, False
    )
    return Captured(first, first.client, expected)
