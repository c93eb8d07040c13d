"""What a server and its clients must have in common, in a loop of your own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.exchange.agreement import digest
from fetchsgd.named import in_memory
from fetchsgd.runs.settings import as_settings, merge, resolve
from fetchsgd.runs.settings.sections import TrainSettings
from fetchsgd.runs.setup import Setup
from fetchsgd.runs.toml_files import Settings
from fetchsgd.tasks.base import ClientData, Task


class Plan:
    """The model, the method, and how numbers travel: the same on the server and on every client.

    Two programs that make the same plan may exchange messages; with different ones they refuse
    each other.

    Args:
        model: a function that makes the module, whose initial weights then follow from the seed;
            or a module, which must have the same weights on every machine. Parameters with
            `requires_grad=False` and buffers are neither trained nor sent.
        method: the name of a method, a dictionary of its name and its options, or a method object
            or class of your own.
        rounds: how many there will be, for a schedule that changes over them.
        seed: of the initial weights, the sketch's hash and all that is rounded at random.
        averaging: "uniform", every client counts the same, or "examples", by how many it has.
        weight_decay: so many times the weights are added to each gradient.
        device: where the model computes, "cpu", "cuda" or "auto".
        settings: the sections `schedule`, `local`, `upload` and `download` as for `simulate`, or
            single settings of theirs. A schedule is counted in rounds, and constant by default.

    >>> import torch, fetchsgd as fs
    >>> def make_model():
    ...     return torch.nn.Linear(100, 10)
    >>> plan = fs.Plan(
    ...     make_model, {"name": "fetchsgd", "k": 50, "cols": 200}, rounds=20,
    ...     schedule={"kind": "linear", "peak": 0.1}, quantiser=fs.Bits(8), grid="steps",
    ... )
    >>> plan.dim, round(plan.rate(0), 4), round(plan.rate(19), 4)
    (1010, 0.0975, 0.0025)
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        method: Any = "fetchsgd",
        *,
        rounds: int | None = None,
        seed: int = 0,
        averaging: str = "uniform",
        weight_decay: float = 0.0,
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        _refuse_others(settings)
        if not callable(model):
            raise UserError(f"model must be a module, or a function that makes one, got {model!r}")
        written = as_settings(_without_data(model), method, settings)
        train = {
            "epochs": float(rounds or 1), "clients_per_round": 1, "seed": seed,
            "averaging": averaging, "weight_decay": weight_decay, "device": device,
        }  # fmt: skip
        base: Settings = {"schedule": {"kind": "constant"}, "train": train}
        with in_memory(written.objects):
            config = resolve(merge(base, written.given), written.assignments)
        if rounds is None and config.schedule.kind != "constant":
            raise UserError(
                f"schedule.kind = {config.schedule.kind!r} changes over the rounds: say how many "
                "there will be, as rounds=100"
            )
        self.setup = Setup(config)
        self.rounds = rounds
        if written.dim is not None and written.dim != self.dim:
            raise UserError(
                f"the method is for {written.dim} weights, but the model has {self.dim}; give the "
                "method as a dictionary, or as a class, to have that filled in"
            )

    @property
    def dim(self) -> int:
        """The number of weights that are trained."""
        return self.setup.model.dim

    @property
    def settings(self) -> Settings:
        """All of them, by section and key."""
        return self.setup.config.settings

    @property
    def notes(self) -> list[str]:
        """Sentences about the method that one should read before training."""
        return list(self.setup.method.notes)

    @cached_property
    def digest(self) -> str:
        """Differs where settings or initial weights do."""
        return digest(self.setup)

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.setup.rate(round)


def _refuse_others(settings: dict[str, Any]) -> None:
    """Settings of a simulation, whose loop is not the user's own."""
    for name in settings:
        section, _, key = name.partition(".")
        if section in ("train", "task") or (key or name) in TrainSettings.__dataclass_fields__:
            raise UserError(
                f"a plan has no setting {name!r}: which clients take part, and how often, is up to "
                'your loop; local steps are local={"epochs": 2}'
            )


def _without_data(model: nn.Module | Callable[[], nn.Module]) -> Task:
    """A task of which only the model is known: data and loss are the clients' own."""
    nothing = torch.zeros(1, 1)
    return Task(
        name="own",
        train=ClientData(nothing, nothing[0], np.array([0, 1])),
        test_inputs=nothing,
        test_targets=nothing[0],
        model=(lambda: model) if isinstance(model, nn.Module) else model,
        loss=_elsewhere,
        quality=_elsewhere,
    )


def _elsewhere(outputs: Tensor, targets: Tensor) -> Tensor:
    raise AssertionError(f"clients have losses of their own: {outputs.shape}, {targets.shape}")
