"""The methods of the comparison, each with the settings that were tried for it: 12 for every one.

A method's other settings are our defaults. Whole passes over a client's data, its local steps, are
FedAvg's; a client of FetchSGD as in the paper, and of uncompressed SGD, sends one gradient over all
of its data. Low-bit FetchSGD is tried with both.
"""

from __future__ import annotations

from itertools import product
from typing import Any

CLIENTS = 4
TARGET = 0.95  # accuracy on the test set
UP, DOWN = 1e6, 10e6  # bits a second
MOST_ROUNDS = 60

COMMON = "schedule.kind=constant"
FEW_BITS = "download.grid=steps"
LOCAL = "local.batch_size=10"
RATES = (0.2, 0.4, 0.8)

# name -> Flower's `method.name`, what is fixed, and what is tried
Tried = tuple[str, str, dict[str, tuple[float, ...]]]
METHODS: dict[str, Tried] = {
    "uncompressed": (
        "uncompressed",
        "",
        {"schedule.peak": (0.2, 0.4, 0.8, 1.6), "method.momentum": (0.0, 0.5, 0.9)},
    ),
    "fedavg": (
        "fedavg",
        "",
        {"schedule.peak": RATES, "local.epochs": (2, 5), "local.batch_size": (10, 30)},
    ),
    "fetchsgd, as in the paper": (
        "fetchsgd",
        "method.hash=fixed method.k=30000",
        {"schedule.peak": RATES, "method.momentum": (0.5, 0.9), "method.cols": (32000, 64000)},
    ),
    "fetchsgd, low-bit": (
        "fetchsgd",
        f"{FEW_BITS} {LOCAL} method.hash=fixed method.momentum=0 method.cols=128000 method.k=60000",
        {"schedule.peak": RATES, "local.epochs": (2, 5), "upload.bits": (2, 4)},
    ),
    "fetchsgd, low-bit, one gradient": (
        "fetchsgd",
        f"{FEW_BITS} method.hash=fixed method.cols=128000 method.k=30000",
        {"schedule.peak": RATES, "method.momentum": (0.5, 0.9), "upload.bits": (2, 4)},
    ),
    "fedavg, low-bit": (
        "fedavg",
        f"{FEW_BITS} {LOCAL}",
        {"schedule.peak": RATES, "local.epochs": (2, 5), "upload.bits": (2, 4)},
    ),
}


def candidates(name: str) -> list[str]:
    """All settings that are tried for a method, as texts of assignments."""
    _, fixed, tried = METHODS[name]
    choices = [[f"{key}={value}" for value in values] for key, values in tried.items()]
    return [" ".join([COMMON, *fixed.split(), *chosen]) for chosen in product(*choices)]


def run_settings(name: str, settings: str, seed: int, rounds: int) -> dict[str, Any]:
    """As Flower hands them out; the task's module lies beside this one."""
    return {
        "task.name": "wide_digits:wide_digits",
        "method.name": METHODS[name][0],
        "train.epochs": float(rounds),  # all clients take part in every round
        "train.clients_per_round": CLIENTS,
        "train.seed": seed,
        "settings": settings,
    }
