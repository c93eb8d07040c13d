"""What a simulated run leaves to the program that called for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fetchsgd.formatting import UNKNOWN, format_bytes, format_ratio
from fetchsgd.runs.folder import Line
from fetchsgd.runs.toml_files import Settings


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients together, and how many times less that is than uncompressed SGD.

    None where nothing was sent.
    """

    upload_bytes: int
    download_bytes: int
    upload_compression: float | None
    download_compression: float | None
    overall_compression: float | None

    @classmethod
    def of(cls, summary: Line, prefix: str) -> Traffic:
        return cls(**{name: summary[f"{prefix}{name}"] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, eq=False)
class Result:
    """How a run ended: what it measured and sent, and the model that it trained.

    value: the metric on the test set at the end; None if the run diverged.
    metric: its name, such as "accuracy".
    history: one entry per evaluation: round, epoch, losses, the metric, bytes and seconds.
    wire: bytes as they are sent, positions, headers and all.
    paper: bytes as the paper counts them, four for each number that is not zero.
    model: the trained module, on the CPU; None if the run diverged.
    settings: every setting, by section and key.
    folder: the run folder, if there is one.
    summary: all of result.json: also seed, seconds, versions and hardware.
    """

    value: float | None
    metric: str
    history: list[Line] = field(repr=False)
    wire: Traffic
    paper: Traffic = field(repr=False)
    model: nn.Module | None = field(repr=False)
    settings: Settings = field(repr=False)
    folder: Path | None
    summary: Line = field(repr=False)

    @classmethod
    def of(
        cls, summary: Line, history: list[Line], model: nn.Module | None, folder: Path | None
    ) -> Result:
        wire, paper = Traffic.of(summary, "wire_"), Traffic.of(summary, "")
        value, metric, settings = summary["value"], summary["metric"], summary["config"]
        return cls(value, metric, history, wire, paper, model, settings, folder, summary)

    @property
    def rounds(self) -> int:
        return int(self.summary["rounds"])

    def to_pandas(self) -> Any:
        """The history as a `pandas.DataFrame`; needs pandas."""
        import pandas

        return pandas.DataFrame(self.history)

    def __str__(self) -> str:
        value = UNKNOWN if self.value is None else f"{self.value:.4f}"
        ratio = self.wire.overall_compression
        times = "nothing" if ratio is None else format_ratio(ratio).replace("×", "x")
        return (
            f"{self.metric} {value} after {self.rounds} rounds; "
            f"{format_bytes(self.wire.upload_bytes)} up, "
            f"{format_bytes(self.wire.download_bytes)} down, {times} less than uncompressed SGD"
        )
