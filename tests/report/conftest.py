"""Run folders that look like real ones, without the training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

DIM = 1_000_000
BASELINE_ROUNDS = 2400
METHODS = {
    "fetchsgd": [{"k": k, "rows": 5, "cols": cols} for k in (500, 5000) for cols in (2000, 20_000)],
    "local_topk": [{"k": k, "momentum": m} for k in (500, 5000, 50_000) for m in (0.0, 0.9)],
    "fedavg": [{"local_epochs": n} for n in (1, 2, 5)],
    "true_topk": [{"k": k} for k in (500, 50_000)],
    "uncompressed": [{}],
}
# What a method at an average setting reaches, and its upload and download compression.
TYPICAL = {
    "fetchsgd": (0.92, 12.0, 30.0),
    "local_topk": (0.90, 60.0, 6.0),
    "fedavg": (0.91, 4.0, 4.0),
    "true_topk": (0.93, 1.0, 45.0),
    "uncompressed": (0.945, 1.0, 1.0),
}


def toml(table: dict, prefix: str = "") -> str:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{prefix}{key}]", toml(value, f"{prefix}{key}.")]
    return "\n".join(lines)


def config(
    method: str, options: dict, task: str, seed: int, epochs: float, numbers: dict | None
) -> dict:
    """`numbers` is how they are written, as `bits`, `grid` and `step`; None for older versions."""
    form = {"hash": "fresh"} if method == "fetchsgd" else {}
    sections = {
        "task": {"name": task, "clients": 1000},
        "method": {"name": method, **form, **options},
        "train": {"epochs": epochs, "clients_per_round": 10, "seed": seed},
        "schedule": {"name": "triangular", "peak": 0.4},
        "local": {"epochs": 1, "batch_size": 50},
    }
    if numbers is None:
        return sections
    download = {"grid": "float32", "step": 0.125, "log": 256, **numbers}
    return {**sections, "upload": {"bits": download.pop("bits", 32)}, "download": download}


def metrics(value: float, rounds: int, totals: dict[str, int], metric: str) -> list[dict]:
    """Lines of metrics.jsonl; `totals` are the bytes in the end."""
    lines = []
    for index in range(41):
        done = index / 40
        line = {
            "round": round(done * rounds),
            "epoch": 24 * done,
            "lr": 0.4 * (1 - done),
            "train_loss": None if index == 0 else 2.3 * math.exp(-3 * done) + 0.05,
            **{name: round(done * total) for name, total in totals.items()},
            "seconds": 600 * done,
        }
        if index % 4 == 0:
            rise = 1 - math.exp(-4 * done)
            start = 0.1 if metric == "accuracy" else 400
            line["test_loss"] = 2.4 - 2 * rise
            line[metric] = start + (value - start) * rise / (1 - math.exp(-4))
        lines.append(line)
    return lines


def write_run(
    root: Path,
    name: str,
    method: str = "fetchsgd",
    *,
    options: dict | None = None,
    value: float | None = 0.9,
    compression: tuple[float, float] | None = (10.0, 20.0),
    wire: tuple[float, float] | None = (8.0, 16.0),
    numbers: dict | None = None,
    status: str = "finished",
    task: str = "cifar10",
    metric: str = "accuracy",
    seed: int = 0,
    epochs: float = 24.0,
    folder: str | None = None,
) -> Path:
    """One run folder; status may be "unfinished".

    `compression` and `wire` are upload and download as the paper counts and on the wire. Without
    `wire` it is a folder of an older version.
    """
    path = root / (folder or name)
    path.mkdir(parents=True)
    if wire is not None:
        numbers = numbers or {}
    settings = config(method, options or {}, task, seed, epochs, numbers)
    known = compression is not None
    sent = traffic(compression or (1.0, 1.0), "", known)
    if wire is not None:
        sent |= traffic(wire if known else (1.0, 1.0), "wire_", known)
    totals = {field: number for field, number in sent.items() if field.endswith("_bytes")}
    lines = metrics(0.1 if value is None else value, 2400, totals, metric)
    text = "\n".join(map(json.dumps, lines[:20] if status == "unfinished" else lines))
    path.joinpath("config.toml").write_text(toml(settings))
    if status == "unfinished":
        path.joinpath("metrics.jsonl").write_text(text + '\n{"round": 1300, "epo')
        return path
    path.joinpath("metrics.jsonl").write_text(text + "\n")
    result = {
        "name": name,
        "status": status,
        "task": task,
        "method": method,
        "metric": metric,
        "higher_is_better": metric == "accuracy",
        "value": value,
        "train_loss": 0.21,
        "test_loss": 0.43,
        "rounds": 2400,
        "epochs": epochs,
        "dim": DIM,
        **sent,
        "seconds": 612.5,
        "seed": seed,
        "commit": "0123abc",
        "hardware": "NVIDIA H100",
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "config": settings,
    }
    path.joinpath("result.json").write_text(json.dumps(result))
    return path


def traffic(ratios: tuple[float, float], prefix: str, known: bool) -> dict:
    """The fields of one count in result.json."""
    total = 4 * DIM * BASELINE_ROUNDS * 10
    (upload, download), overall = ratios, 2 / sum(1 / ratio for ratio in ratios)
    by_kind = {"upload": upload, "download": download, "overall": overall}
    return {
        f"{prefix}upload_bytes": round(total / upload),
        f"{prefix}download_bytes": round(total / download),
        **{f"{prefix}{kind}_compression": by_kind[kind] if known else None for kind in by_kind},
    }


def write_study(root: Path) -> Path:
    """Two tasks, five methods, several settings and epochs, some with fewer bits and three seeds.

    Two runs diverged, one of them a seed of three, and one is unfinished.
    """
    for method, choices in METHODS.items():
        value, upload, download = TYPICAL[method]
        for index, options in enumerate(choices):
            for epochs in (24.0, 12.0, 6.0):
                factor = 1.6 ** (index - 1.5) * 24 / epochs
                up = max(24 / epochs, upload * factor) if upload > 1 else 24 / epochs
                down = max(24 / epochs, download * factor) if download > 1 else 24 / epochs
                loss = 0.012 * index + 0.03 * math.log2(24 / epochs) + 0.02 * (index % 2)
                write_run(
                    root,
                    f"{method}-{index}-{epochs:g}",
                    method,
                    options=options,
                    value=value - loss,
                    compression=(up, down),
                    wire=(0.95 * up, 0.7 * down),
                    epochs=epochs,
                )
    write_run(root, "fetchsgd-other-seed", options=METHODS["fetchsgd"][0], value=0.915, seed=1)
    write_low_bit(root)
    diverging = {"k": 500, "momentum": 0.99}
    write_run(
        root,
        "exploded",
        "local_topk",
        options=diverging,
        value=None,
        compression=None,
        status="diverged",
    )
    write_run(root, "still-going", options={"k": 50, "rows": 5, "cols": 200}, status="unfinished")
    write_run(
        root,
        "<script>alert('name')</script>",
        "fedavg",
        options={"local_epochs": 3},
        value=0.85,
        compression=(9.0, 9.0),
        folder="awkward",
    )
    for method, value, ratio in (("fetchsgd", 21.0, 9.0), ("uncompressed", 19.5, 1.0)):
        write_run(
            root, f"{method}-chat", method, value=value, compression=(ratio, ratio),
            task="personachat", metric="perplexity",
        )  # fmt: skip
    return root


def write_low_bit(root: Path) -> None:
    """FetchSGD with 8, 4 and 2 bits, three seeds each; the last seed of 2 bits diverges."""
    for bits, value in ((8, 0.92), (4, 0.91), (2, 0.89)):
        for seed in (0, 1, 2):
            diverged = (bits, seed) == (2, 2)
            write_run(
                root,
                f"bits{bits}-seed{seed}",
                options=METHODS["fetchsgd"][0],
                value=None if diverged else value + 0.002 * seed,
                compression=None if diverged else (6.0, 15.0),
                wire=(6.0 * 32 / bits, 40.0),
                numbers={"bits": bits, "grid": "steps", "step": 0.25},
                status="diverged" if diverged else "finished",
                seed=seed,
            )


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def make_run(tmp_path: Path):
    """Write a run folder into the test's own folder."""

    def make(name: str = "run", **options) -> Path:
        return write_run(tmp_path / "runs", name, **options)

    return make


@pytest.fixture
def diagnose():
    """Add diagnostics to a run folder, falling from line to line; None stands for NaN."""

    def add(folder: Path, **names) -> None:
        path = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for index, line in enumerate(lines[1:], 1):
            line |= {f"diagnose_{name}": value and value / index for name, value in names.items()}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return add


@pytest.fixture
def diagnosed_runs(make_run, diagnose, tmp_path: Path) -> Path:
    """One run with all quantities, one with one of them, one without."""
    from fetchsgd.report.diagnostics import QUANTITIES

    diagnose(make_run("all"), **dict.fromkeys(QUANTITIES, 0.5))
    diagnose(make_run("two", options={"k": 9}), heaviest_share=0.25, contraction=None)
    make_run("none", method="uncompressed")
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def report(study: Path, tmp_path_factory: pytest.TempPathFactory):
    """The report on the study, written once for all tests that look at it."""
    from fetchsgd.report import write_report

    return write_report([study], tmp_path_factory.mktemp("report") / "report.html")
