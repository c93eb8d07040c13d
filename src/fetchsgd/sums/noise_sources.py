"""Where a client's noise in whole levels comes from: a secret key, or a seed that anybody knows.

With a secret key (privacy/source.py) noise is exact and hides a client; each client has a key of
its own, or, in a simulation, streams of one key. From a seed it is as good as that for experiments,
and fast: equal numbers on all devices, by the generator with which clients round. A word that falls
on a step of the distribution, once in 2^50, is not looked at any closer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from fetchsgd.privacy import LevelNoise, Source
from fetchsgd.privacy.tables import Sampler, Steps, steps_of
from fetchsgd.quantisers.kernels.reference import random_words
from fetchsgd.quantisers.level_layout import num_runs
from fetchsgd.randomness import number
from fetchsgd.threads import run_in_order


class NoiseSource(Protocol):
    """Draws a row of numbers for each client."""

    def draw(
        self, noise: LevelNoise, count: int, round: int, clients: Int64[Tensor, " n"]
    ) -> Int32[Tensor, "n count"]: ...


@dataclass(frozen=True)
class SecretNoise:
    """A stream of its own for each round and client."""

    source: Source

    def draw(
        self, noise: LevelNoise, count: int, round: int, clients: Int64[Tensor, " n"]
    ) -> Int32[Tensor, "n count"]:
        sampler = Sampler(noise.kind, noise.variance)
        rows = [sampler.draw(count, self.source, round, client) for client in clients.tolist()]
        drawn = np.stack(rows).astype(np.int32) if rows else np.empty((0, count), np.int32)
        return torch.from_numpy(drawn).to(clients.device)


@dataclass(frozen=True)
class SeededNoise:
    """The same for all who know the seed."""

    seed: int

    def draw(
        self, noise: LevelNoise, count: int, round: int, clients: Int64[Tensor, " n"]
    ) -> Int32[Tensor, "n count"]:
        keys = [number(self.seed, "noise", 2 * round + part) for part in (0, 1)]
        steps = steps_of(noise.kind, noise.variance)
        draw = _draw_on_cpu if clients.device.type == "cpu" else _draw_on_device
        return draw(steps, keys, count, clients)


def _draw_on_cpu(
    steps: Steps, keys: list[int], count: int, clients: Int64[Tensor, " n"]
) -> Int32[Tensor, "n count"]:
    from fetchsgd.sums.noise_loops import draw_row

    out, pair = np.empty((len(clients), count), dtype=np.int32), np.array(keys, dtype=np.int64)
    tasks = enumerate(clients.tolist())
    list(run_in_order(lambda task: draw_row(out[task[0]], *steps, pair, task[1]), tasks, out.size))
    return torch.from_numpy(out)


def _draw_on_device(
    steps: Steps, keys: list[int], count: int, clients: Int64[Tensor, " n"]
) -> Int32[Tensor, "n count"]:
    """Row by row, as words take a lot of memory. Signed words are in order, less 2^63 each."""
    least = np.uint64(1 << 63)
    ordered = torch.from_numpy((steps.steps ^ least).view(np.int64)).to(clients.device)
    out = torch.empty(len(clients), count, dtype=torch.int32, device=clients.device)
    for row, stream in zip(out, clients[:, None], strict=True):
        high, low = (random_words(stream, num_runs(count), key).flatten()[:count] for key in keys)
        words = high - (1 << 31) << 32 | low
        row.copy_(torch.searchsorted(ordered, words, right=True) + steps.first)
    return out
