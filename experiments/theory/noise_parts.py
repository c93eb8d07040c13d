"""What sampling, rounding and collisions each add to the noise of an update, along a run.

    python experiments/theory/noise_parts.py --out results/theory-noise-parts.json

Trains without compression, and looks at the gradients of all clients in some rounds: digits, and
CIFAR10 with a small network (task.channels = 16), eight minutes on two cores. `--show FILE` prints
the tables of docs/theory.md. An update is meant to be along g, the mean gradient of all clients.
What it is along instead differs from g by

    sampling    only W of N clients take part: (N - W) / (N - 1) / W times the variance of clients
    rounding    each rounds to whole multiples of a step s, at random and for itself: s^2 f (1 - f)
                for a number at f between two multiples, added up over the numbers, over W
    collisions  they share a sketch of c cells: d / c - 1 times the squared length of the mean of
                W, with one row and the unbiased decoder (docs/theory.md)

each as an expectation and over |g|^2. The bytes are those of a client's message, on average over
clients and over the rounds that were looked at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fetchsgd.quantisers.shared_step import SharedStep
from fetchsgd.runs.environment import commit, hardware, versions
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.wire.sizes import HEADER_BYTES

RUNS: dict[str, tuple[str, ...]] = {
    "digits": (),
    "cifar10": ("task.channels=16", "epochs=8", "peak=0.05", "pivot=2", "baseline_epochs=8"),
}
LOOKS = (0.0, 0.05, 0.25, 0.5, 0.9)  # parts of a run
DENSITIES = (0.1, 0.01)
SMALLER = (10, 20, 80)  # weights to a cell
CHUNK = 500  # clients at once
CPU = torch.device("cpu")


def gradients(run: Run, weights: Tensor, round: int) -> Iterator[Tensor]:
    """Of all clients, a row each."""
    clients = np.arange(run.setup.sampler.num_clients)
    for start in range(0, len(clients), CHUNK):
        cohort = run.cohort.gatherer.gather(clients[start : start + CHUNK], round)
        vectors, _ = run.setup.trainer.client_vectors(
            weights, cohort, run.config.local, 0.0, torch.Generator(), 0
        )
        yield vectors


def rounding_error(vectors: Tensor, step: float) -> float:
    """E |rounded - vectors|^2 where numbers are rounded to multiples of the step, unbiased."""
    between = (vectors.abs() / step).frac().double()
    return step**2 * float((between * (1 - between)).sum())


def noise_parts(run: Run, weights: Tensor, round: int) -> dict[str, tuple[float, float]]:
    """For each way to send, the noise over |g|^2 and the bytes of a message."""
    total, squares, magnitude, n = torch.zeros_like(weights), 0.0, 0.0, 0
    for vectors in gradients(run, weights, round):
        total += vectors.sum(dim=0)
        squares += float(vectors.double().square().sum())
        magnitude += float(vectors.double().abs().sum())
        n += len(vectors)
    dim, cohort = len(weights), run.config.train.clients_per_round
    signal = float((total / n).double().square().sum())
    sampling = (n - cohort) / (n - 1) / cohort * (squares / n / signal - 1)
    found = {f"{cohort} of {n:,} clients": (sampling, HEADER_BYTES + 4.0 * dim)}
    size = magnitude / n / dim
    for density in DENSITIES:
        quantiser, off, sent = SharedStep(density).for_size(torch.tensor(size)), 0.0, 0.0
        for vectors in gradients(run, weights, round):
            off += rounding_error(vectors, size / density)
            rows = quantiser.round_rows(vectors, round, torch.arange(len(vectors)))
            sent += float(rows.section_bytes().sum())
        noise = off / n / cohort / signal
        found[f"levels of density {density:g}"] = noise, HEADER_BYTES + sent / n
    for smaller in SMALLER:
        noise = (smaller - 1) * (1 + sampling)
        found[f"{smaller} weights to a cell"] = noise, HEADER_BYTES + 4 * dim / smaller
    return found


def along(task: str, sets: Sequence[str]) -> dict[str, Any]:
    """The parts in some rounds of a run."""
    run = Run(resolve({"task": {"name": task}, "method": {"name": "uncompressed"}}, sets))
    rounds, training = [int(part * run.rounds) for part in LOOKS], run.start()
    looks = [noise_parts(run, training.weights, 0)]
    for round in range(1, rounds[-1] + 1):
        training, _ = next(run.train(training))
        if round in rounds:
            looks.append(noise_parts(run, training.weights, round))
    parts = {
        name: {
            "noise": [look[name][0] for look in looks],
            "bytes": sum(look[name][1] for look in looks) / len(looks),
        }
        for name in looks[0]
    }
    return {"task": task, "settings": list(sets), "rounds": rounds, "parts": parts}


def table(one: dict[str, Any]) -> str:
    """As Markdown."""
    head = ["noise over the squared length of g, in round", *map(str, one["rounds"]), "bytes"]
    rows = [head, ["---"] * len(head)]
    for name, part in one["parts"].items():
        rows.append([name, *map(_told, part["noise"]), f"{part['bytes']:,.0f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _told(noise: float) -> str:
    return f"{noise:.2f}" if noise < 1 else f"{noise:.1f}" if noise < 10 else f"{noise:,.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write what is measured, as JSON")
    parser.add_argument("--show", type=Path, help="print the tables of such a file, and stop")
    given = parser.parse_args(arguments)
    if given.show:
        try:
            found = json.loads(given.show.read_text())
        except (OSError, ValueError) as error:
            parser.error(f"cannot read {given.show}: {error}")
    else:
        runs = [along(task, sets) for task, sets in RUNS.items()]
        found = {
            "commit": commit(),
            "hardware": hardware(CPU),
            "versions": versions(),
            "runs": runs,
        }
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    for one in found["runs"]:
        print(f"{one['task']}\n\n{table(one)}\n")


if __name__ == "__main__":
    main()
