"""What a result was obtained on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fetchsgd.errors import UserError

PACKAGES = ("torch", "numpy", "numba", "triton")


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"train.device must be auto, cpu or cuda, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"train.device must be auto, cpu or cuda, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"train.device is {name!r}, but torch finds no CUDA device here")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(f"train.device is {name!r}, but torch finds {found} CUDA devices here")
    return device


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """What train.dtype means on a device: "auto" is bfloat16 where that is fast."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if name.startswith("bfloat16") else torch.float32


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                return f"{name}, {torch.get_num_threads()} threads"
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def commit() -> str:
    """The commit of this program where it runs from a checkout, with "+" for changes since.

    FETCHSGD_COMMIT takes precedence: a copy of a checkout may hold another history.
    """
    if told := os.environ.get("FETCHSGD_COMMIT"):
        return told
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=10)
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
