"""Whole federations without processes, for the tests that look at what becomes of them."""

from __future__ import annotations

import json

import pytest
from flower.fakegrid import FakeGrid
from safetensors.torch import load_file

from fetchsgd.flower.protocol import HEADER
from fetchsgd.flower.server import federate
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.setup import Setup


def config(out, method="fetchsgd", **more):
    given = {"task.name": "tinytask:tiny", "method.name": method, "federation.out": str(out)}
    return given | {name.replace("__", "."): value for name, value in more.items()}


def federation(out, method="fetchsgd", clients=range(12), **more):
    grid = FakeGrid(config(out, method, **more))
    for client in clients:
        grid.add(client)
    return grid


def train(grid):
    settings, ours = read_settings(grid.run_config)
    return federate(grid, Setup(settings, ours.clients), ours, grid.clock)


def weights(folder):
    return load_file(folder / FILE)["weights"]


def at_look(grid, number, act):
    """Something that happens once, just before the server looks for replies that often."""
    looks = [0]

    def look():
        looks[0] += 1
        if looks[0] == number:
            act()

    grid.before_look = look


class KilledError(BaseException):
    pass


def train_until_killed(grid, looks):
    """The server ends without a word after it has looked for replies that often."""

    def kill():
        raise KilledError

    at_look(grid, looks + 1, kill)
    with pytest.raises(KilledError):
        train(grid)


def counts(result):
    return result["federation"]["counts"]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def only_training(change):
    return lambda message, reply: (
        reply if message.metadata.message_type == "query" else change(reply)
    )


def header(name, value):
    def change(reply):
        reply.content[HEADER][name] = value
        return reply

    return only_training(change)
