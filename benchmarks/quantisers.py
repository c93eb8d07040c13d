"""Squared error of a client's message against its bits on the wire, on recorded gradients.

    python benchmarks/quantisers.py --record digits.npz --task digits --rounds 0 100 300 --clients 8
    python benchmarks/quantisers.py --gradients digits.npz cifar10.npz \
        --out benchmarks/results/quantisers.json --figure benchmarks/results/quantisers.png

Errors are those of one client, relative to the squared length of its vector; what the server adds
up has them divided by the number of clients. Bits are of whole messages as they are sent, headers
and tables included. Beside the curves stand two bounds for independent normal numbers: Shannon's,
2^(-2R), and 1 / (2^(2R) - 1), what is left of it where the estimate must be unbiased: the best
code, scaled up until its mean is right. Gradients are not normal, so a quantiser may go below both.

Of rounds with several clients a second table says whether each client should take a step of its
own, all of them the same, or each what a cap on its bytes allows.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment
from quantiser_figure import draw
from torch import Tensor

from fetchsgd.quantisers import Bits, Eden, Quantiser, Step
from fetchsgd.quantisers.step import sample
from fetchsgd.quantisers.step_search import from_notches, notches
from fetchsgd.quantisers.steps import StepRows, rms_steps, round_to_steps
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire import DenseVector, encode
from fetchsgd.wire.sizes import HEADER_BYTES

TAUS = [2.0**i for i in range(-6, 8)]
RATES = [0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4]
WIDTHS = [2, 3, 4, 6, 8, 16]
KEY = 15
# Numbers: of longer vectors only some settings are measured, and EDEN by every 16th of its blocks.
# It treats each block by itself, so the others would not say more.
LONG = 10**7
Row = dict[str, Any]
# The vectors of each client, by task and round.
Recorded = dict[str, dict[int, dict[int, Tensor]]]


def record(task: str, sets: Sequence[str], rounds: Sequence[int], clients: int, out: Path) -> None:
    """Train, and keep the gradients of some clients of some rounds."""
    run = Run(resolve({"task": {"name": task}, "method": {"name": "uncompressed"}}, sets))
    kept: dict[str, np.ndarray] = {}
    training = run.start()
    for round in range(max(rounds) + 1):
        if round in rounds:
            cohort = run.setup.sampler.cohort(round)[:clients]
            gathered = run.cohort.gatherer.gather(cohort, round)
            vectors, _ = run.setup.trainer.client_vectors(
                training.weights, gathered, run.config.local, 0.0, None, 0
            )
            for client, vector in zip(cohort.tolist(), vectors.cpu(), strict=True):
                # float16 has 11 bits, but a small range: all vectors get the same length a number.
                length = vector.double().square().mean().sqrt().float()
                name = f"{task.rpartition(':')[2]}_{round}_{client}"
                kept[name] = (vector / length).half().numpy()
                kept[f"{name}_rms"] = length.numpy()
            print(f"{task}, round {round}: {len(cohort)} clients")
        if round < max(rounds):
            training, _ = next(run.train(training))
    np.savez_compressed(out, **kept)


def load(file: Path) -> Recorded:
    found: Recorded = defaultdict(lambda: defaultdict(dict))
    with np.load(file) as arrays:
        for name in arrays.files:
            if name.endswith("_rms"):
                continue
            task, round, client = name.rsplit("_", 2)
            vector = torch.from_numpy(arrays[name]).float()
            if f"{name}_rms" in arrays.files:
                vector *= float(arrays[f"{name}_rms"])
            found[task][int(round)][int(client)] = vector
    return found


def quantisers(every: int) -> Iterator[tuple[str, float, Quantiser]]:
    """Each by the name of its curve, and its setting there; all settings, or every second."""
    yield from (("step", tau, Step(tau)) for tau in TAUS[1::every])
    widths = WIDTHS[::every] + WIDTHS[-1:] * (every - 1)
    yield from (("bits" if width < 16 else "bfloat16", width, Bits(width)) for width in widths)
    yield from (("eden", rate, Eden(rate)) for rate in RATES[1:])


def measure(vector: Tensor, client: int) -> list[Row]:
    """Bits and errors of all quantisers on one vector."""
    rows = []
    is_long = len(vector) > LONG
    for name, setting, quantiser in quantisers(every=2 if is_long else 1):
        tried = sample(vector[None])[0] if is_long and name == "eden" else vector
        length = float(tried.double().square().sum())
        sent = quantiser.round_rows(tried[None], KEY, torch.tensor([client]))
        off = (sent.dequantise()[0] - tried).double().square().sum()
        if len(tried) == len(vector):
            size = len(encode(DenseVector(sent.row(0))))
        else:
            size = HEADER_BYTES + quantiser.most_bytes(len(vector))  # EDEN's is always that
        bits = 8 * size / len(vector)
        rows.append({"curve": name, "setting": setting, "bits": bits, "error": float(off) / length})
    return rows


def measure_cohort(vectors: dict[int, Tensor], tau: float) -> list[Row]:
    """The error of the mean at equal bytes: a step each, one for all, and a cap on each message."""
    cells, clients = torch.stack(list(vectors.values())), torch.tensor(list(vectors))
    own = Step(tau).round_rows(cells, KEY, clients)
    public = _equal_steps(cells, clients, tau, float(own.section_bytes().sum()))
    most = int(own.section_bytes().mean()) + 64
    capped = Step(tau / 64, math.ceil((most - 64 + 16) / 0.995) + 64).round_rows(
        cells, KEY, clients
    )
    length = float(cells.mean(dim=0).double().square().sum())
    rows = []
    for name, sent in (("own steps", own), ("one step for all", public), ("equal bytes", capped)):
        off = (sent.dequantise() - cells).double().square().sum() / len(cells) ** 2
        size = 8 * float(sent.section_bytes().mean()) / cells.shape[1]
        rows.append({"steps": name, "tau": tau, "bits": size, "error": float(off) / length})
    return rows


def _equal_steps(cells: Tensor, clients: Tensor, tau: float, size: float) -> StepRows:
    """Rounded to one step for all, the smallest at which they take no more bytes in all."""
    steps = notches(rms_steps(cells, tau))
    low, high = int(steps.min()) - 256, int(steps.max()) + 256

    def rounded(notch: int) -> StepRows:
        step = from_notches(torch.tensor([notch])).expand(len(cells))
        return round_to_steps(cells, step, KEY, clients)

    while high - low > 1:
        middle = (low + high) // 2
        if float(rounded(middle).section_bytes().sum()) > size:
            low = middle
        else:
            high = middle
    return rounded(high)


def measure_all(recorded: Recorded) -> tuple[list[Row], list[Row]]:
    """One client of each round on its own, and all clients of a round together."""
    rows, cohorts = [], []
    for task, by_round in recorded.items():
        for round, vectors in sorted(by_round.items()):
            client, vector = next(iter(vectors.items()))
            where = {"task": task, "round": round, "count": len(vector)}
            rows += [{**where, **row} for row in measure(vector, client)]
            if len(vectors) > 1 and len(vector) <= LONG:
                where["clients"] = len(vectors)
                found = [row for tau in (2, 8, 32) for row in measure_cohort(vectors, tau)]
                cohorts += [{**where, **row} for row in found]
    return rows, cohorts


def table(rows: list[Row]) -> str:
    """Errors by quantiser, with the least that normal numbers allow at the same bits."""
    lines = ["task       round  quantiser   setting   bits     error    unbiased, normal"]
    for row in rows:
        bound = 1 / math.expm1(2 * math.log(2) * row["bits"])
        lines.append(
            f"{row['task']:<10} {row['round']:>5}  {row['curve']:<10} {row['setting']:>8g} "
            f"{row['bits']:>7.4f} {row['error']:>10.3g} {bound:>10.3g}"
        )
    return "\n".join(lines)


def cohort_table(rows: list[Row]) -> str:
    head = "task       round  clients   tau  steps               bits    error of the mean"
    lines = (
        f"{row['task']:<10} {row['round']:>5}  {row['clients']:>7} {row['tau']:>5g}  "
        f"{row['steps']:<17} {row['bits']:>7.4f} {row['error']:>10.3g}"
        for row in rows
    )
    return "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="write gradients here, and stop")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 100, 300])
    parser.add_argument("--clients", type=int, default=4, help="of each round")
    parser.add_argument("--set", action="append", default=[], help="as of `fetchsgd train`")
    parser.add_argument("--gradients", type=Path, nargs="+", help="what --record has written")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.record:
        record(given.task, given.set, given.rounds, given.clients, given.record)
        return
    if not given.gradients:
        parser.error("--gradients names files of gradients; --record writes one")
    rows, cohorts = [], []
    for file in given.gradients:
        more, more_cohorts = measure_all(load(file))
        rows += more
        cohorts += more_cohorts
    print(table(rows), cohort_table(cohorts), sep="\n\n")
    if given.out:
        about = environment("cpu")
        text = json.dumps({"about": about, "rows": rows, "cohorts": cohorts}, indent=1)
        given.out.write_text(text + "\n")
    if given.figure:
        draw(rows, given.figure)


if __name__ == "__main__":
    main()
