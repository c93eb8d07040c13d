"""What a download's coder could gain by contexts, on digits: their entropy beside the bytes sent.

    python experiments/download_contexts.py

Trains digits without k and with k, keeps the weights' steps of every eighth round, and asks what
the changes over 8, 32 and 80 rounds would take: as they are sent, and by the entropy of levels
given contexts. `density` is how many of the 64 levels before are not zero, which is what the coder
of docs/wire.md goes by; `tensor` is which tensor a weight belongs to, `held` by how many steps a
client that holds the older version sees it moved already, with its sign. Frequencies are counted in
hindsight, with half a logarithm of the count for each that a table has to say: a little better than
any coder can be.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.wire.sparse_integers import SparseIntegers

Ints = NDArray[np.int64]

FEW = {"quantiser": "shared_step", "density": 0.01}
WAYS: dict[str, dict[str, Any]] = {
    "no k": {"method": {"name": "uncompressed"}, "upload": FEW, "download": {"step": 1.0}},
    "k = 500": {
        "method": {"name": "true_topk", "k": 500, "revisit": 2.0},
        "upload": FEW,
        "download": {"step": 0.25},
    },
}
KEPT, GAPS, WINDOW = 8, (8, 32, 80), 64


def versions(way: str) -> tuple[list[Ints], Ints]:
    """The steps of every eighth round, and the tensor of each weight."""
    given: dict[str, Any] = {**WAYS[way], "task": {"name": "digits"}}
    given["download"] = {"grid": "steps", **given["download"]}
    run = Run(resolve(given))
    found = []
    for training, _ in run.train(run.start()):
        if training.round % KEPT == 0:
            found.append(training.place.steps.numpy().astype(np.int64))
    sizes = run.setup.model.sizes
    return found, np.repeat(np.arange(len(sizes)), sizes)


def entropy(levels: Ints, *contexts: Ints) -> float:
    """Bytes of the levels, given all contexts together, with what tables of frequencies take."""
    key = np.zeros_like(levels)
    for context in contexts:
        key = key * 1000 + context
    bits = 0.0
    for value in np.unique(key):
        counts = np.unique(levels[key == value], return_counts=True)[1]
        total = counts.sum()
        bits -= (counts * np.log2(counts / total)).sum()
        bits += 0.5 * (len(counts) - 1) * math.log2(total + 1)
    return bits / 8


def density(levels: Ints) -> Ints:
    """A class for how many of the levels just before are not zero."""
    count = np.concatenate([[0], np.cumsum(levels != 0)])
    here = np.arange(len(levels))
    first = np.maximum(here - WINDOW, 0)
    share = (count[here] - count[first]) / np.maximum(here - first, 1)
    classes: Ints = np.minimum(np.log2(share + 1 / WINDOW) + 6, 7).astype(np.int64)
    return classes


def sizes_of(old: Ints, new: Ints, tensor: Ints) -> dict[str, float]:
    """Bytes of the change, by each way to code it."""
    levels = new - old
    message = SparseIntegers.from_dense(torch.from_numpy(levels))
    near, held = density(levels), np.clip(old, -3, 3) + 3
    return {
        "sent": len(message.write(message.coding())),
        "no context": entropy(levels),
        "density": entropy(levels, near),
        "density, tensor": entropy(levels, near, tensor),
        "density, held": entropy(levels, near, held),
        "density, tensor, held": entropy(levels, near, tensor, held),
    }


def main() -> None:
    for way in WAYS:
        found, tensor = versions(way)
        for gap in GAPS:
            total: dict[str, float] = defaultdict(float)
            for old, new in zip(found, found[gap // KEPT :], strict=False):
                for name, size in sizes_of(old, new, tensor).items():
                    total[name] += size
            told = ", ".join(f"{name} {size / total['sent']:.3f}" for name, size in total.items())
            print(f"{way}, {gap} rounds: {told}")


if __name__ == "__main__":
    main()
