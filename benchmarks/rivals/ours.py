"""Our simulator: `python ours.py fedavg` or `python ours.py fetchsgd`, on two threads."""

from __future__ import annotations

import sys
import time

import setting
import torch

from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

METHODS = {
    "fedavg": {"name": "fedavg"},
    "fetchsgd": {"name": "fetchsgd", "k": 2000, "cols": 8000},
}


def main(method: str) -> None:
    torch.set_num_threads(2)
    given = {
        "task": {"name": "digits", "examples_per_client": setting.EXAMPLES},
        "method": METHODS[method],
        "train": {"clients_per_round": setting.COHORT, "sampling": "uniform", "device": "cpu",
                  "epochs": 5.0},
        "schedule": {"kind": "constant", "peak": setting.RATE},
        "local": {"epochs": 1 if method == "fedavg" else 0},
    }  # fmt: skip
    run = Run(resolve(given))
    ends, weights = [], run.setup.model.weights()
    for training, _ in run.train(run.start(), setting.WARM_UP + setting.ROUNDS):
        ends.append(time.perf_counter())
        weights = training.weights
    module = setting.network()
    torch.nn.utils.vector_to_parameters(weights, module.parameters())
    setting.print_result(f"ours, {method}", ends, module, ["fetchsgd"])


if __name__ == "__main__":
    main(sys.argv[1])
