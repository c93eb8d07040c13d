"""The sections of a run's settings, as dataclasses with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fetchsgd.clients.local_work import LocalWork
from fetchsgd.errors import UserError
from fetchsgd.privacy import Privacy
from fetchsgd.quantisers import Quantiser
from fetchsgd.runs.settings.parts import GRID, METHOD, QUANTISER, SUM, Chosen
from fetchsgd.runs.toml_files import Settings
from fetchsgd.server.schedule import Schedule
from fetchsgd.sums import Modular
from fetchsgd.tasks import Task

SECTIONS = (
    "task", "method", "train", "schedule", "local", "upload", "download", "privacy", "merge",
    "attack",
)  # fmt: skip


@dataclass(frozen=True)
class TrainSettings:
    """The section [train]."""

    epochs: float = 1.0
    baseline_epochs: float = 0.0  # of the run that compression is relative to; 0 is `epochs`
    clients_per_round: int = 10
    sampling: Literal["epoch", "uniform", "poisson", "stay"] = "epoch"
    leaving: int = 0  # of those that stay
    leave_every: int = 0  # rounds
    averaging: Literal["uniform", "examples"] = "uniform"
    weight_decay: float = 0.0
    # Who adds it to gradients. The server knows the weights, so clients need not send it: "auto"
    # leaves it to the server where messages add up and are rounded, which makes them shorter.
    weight_decay_by: Literal["auto", "clients", "server"] = "auto"
    seed: int = 0
    device: str = "auto"
    # How passes compute. bfloat16_weights: weights are rounded as well, for the passes alone.
    # auto: bfloat16 on a GPU.
    dtype: Literal["float32", "bfloat16", "bfloat16_weights", "auto"] = "float32"
    cuda_graphs: bool = True  # on a GPU: off if the model decides by its data what to compute
    average: float = 0.0  # of the weights that are evaluated and kept (runs/average.py)
    eval_every: float = 1.0  # epochs
    checkpoint_every: int = 100  # rounds; 0 only at the end
    diagnose: bool = False  # whether the theorems' assumptions hold (fetchsgd.diagnose)
    diagnose_every: int = 10  # rounds
    diagnose_window: int = 8  # the most gradients that are summed up, I of Definition 1


@dataclass(frozen=True)
class Config:
    """Everything about a run; `settings` is the same as nested tables, fully resolved.

    parts: those that a setting names, by that setting.
    """

    settings: Settings
    task: Task
    parts: dict[str, Chosen]
    train: TrainSettings
    schedule: Schedule
    local: LocalWork
    privacy: Privacy = field(default_factory=Privacy)

    @property
    def method(self) -> str:
        return self.parts[METHOD.setting].name

    @property
    def method_class(self) -> type:
        return self.parts[METHOD.setting].kind

    @property
    def method_options(self) -> dict[str, Any]:
        return self.parts[METHOD.setting].options

    @cached_property
    def quantiser(self) -> Quantiser:
        """How clients round what they send."""
        try:
            made: Quantiser = self.parts[QUANTISER.setting].made()
            sums = self.parts[SUM.setting].made()
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
        if not isinstance(sums, Modular):
            return made
        if not made.exact:
            raise UserError(
                "upload.sum = 'modular' rounds by itself, to levels that add up: leave out "
                f"upload.quantiser = {self.parts[QUANTISER.setting].name!r} and its options, or, "
                "where a preset has them, set it to 'bits'"
            )
        return sums

    @property
    def grid(self) -> Chosen:
        """Which values weights may take."""
        return self.parts[GRID.setting]


KINDS_OF_SECTIONS: dict[str, type] = {
    "train": TrainSettings,
    "schedule": Schedule,
    "local": LocalWork,
    "privacy": Privacy,
}
