"""A run folder: what a run leaves behind, and what --resume goes on from.

config.toml    every setting, resolved          metrics.jsonl   a line an evaluation
result.json    when the run has ended           events.*        the same for TensorBoard
checkpoint.safetensors
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.runs.checkpoint import FILE, write_atomically
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.settings import changes
from fetchsgd.runs.toml_files import Settings, read_toml, write_toml

Line = dict[str, Any]


class RunFolder:
    """Opened for one run, in a folder that `alone_in` has made; TensorBoard events are written if
    tensorboard is installed.
    """

    def __init__(self, path: Path, settings: Settings, resume: bool) -> None:
        self.path = path
        if (path / "config.toml").exists():
            self._check_reuse(settings, resume)
        write_atomically(path / "config.toml", write_toml(settings).encode())
        self._events: Any = None

    def _check_reuse(self, settings: Settings, resume: bool) -> None:
        if not resume:
            raise UserError(f"{self.path} already holds a run; give --resume, or another --out")
        changed = changes(read_toml(self.path / "config.toml"), settings)
        if changed:
            raise UserError(f"cannot resume {self.path}: {changed[0]}")

    @property
    def result(self) -> Line | None:
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            found: Line = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise UserError(f"{path} is not valid JSON: {error}") from error
        return found

    @property
    def last_line(self) -> Line | None:
        """The newest metrics, if there are any."""
        lines = _whole_lines(self.path / "metrics.jsonl")
        found: Line | None = json.loads(lines[-1]) if lines else None
        return found

    def start(self, round: int) -> None:
        """Forget what was logged after the checkpoint that the run goes on from."""
        path = self.path / "metrics.jsonl"
        kept = [line for line in _whole_lines(path) if json.loads(line)["round"] <= round]
        write_atomically(path, "".join(line + "\n" for line in kept).encode())
        if round == 0:
            (self.path / FILE).unlink(missing_ok=True)
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path), purge_step=round or None)

    def log(self, line: Line) -> None:
        """NaN and infinity become null: the file stays valid JSON."""
        clean = {key: value if _is_finite(value) else None for key, value in line.items()}
        try:
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(clean) + "\n")
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
        if self._events is not None:
            for key, value in clean.items():
                if key != "round" and isinstance(value, int | float):
                    self._events.add_scalar(key, value, line["round"])

    def finish(self, result: Line) -> None:
        write_atomically(self.path / "result.json", (json.dumps(result, indent=1) + "\n").encode())
        self.close()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


def forget(path: Path) -> None:
    """Remove what a run has left, so that another may take its place; the settings last."""
    with alone_in(path):
        for pattern in ("result.json", "metrics.jsonl", FILE, "events.*", "config.toml"):
            for file in path.glob(pattern):
                file.unlink()


def _whole_lines(path: Path) -> list[str]:
    """All lines but a last one that a crash has cut off."""
    if not path.exists():
        return []
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
