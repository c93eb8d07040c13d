"""What clients and weights cost: peak memory and seconds of every part of a round, by size.

    python benchmarks/size.py clients --out benchmarks/results/size-clients.json
    python benchmarks/size.py weights --dim 1e9 --out benchmarks/results/size-weights-cpu.json
    python benchmarks/size.py weights --dim 7e9 --device cuda \\
        --out benchmarks/results/size-weights-cuda.json
    python benchmarks/size.py table benchmarks/results/size-weights-*.json

`clients` trains examples/many_clients.py with growing populations and cohorts, each in a process of
its own. `weights` runs a server's round on parts of the library, without a model: gradients come in
pieces, as layers' do, and are the same few millions of random numbers scaled differently. On a CPU
a peak is of the resident memory, less that of the process before; on a GPU of torch's allocations.
`--out` replaces what the file holds of the same form and number of weights, and keeps the rest, so
that forms can be measured one by one, as memory is free. With 1e9 weights the widest takes 19 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment

from fetchsgd import CountSketch
from fetchsgd.methods import FetchSGD
from fetchsgd.server.grids import Float32Grid
from fetchsgd.server.ledger import Ledger
from fetchsgd.server.rounds import Merged, Training, after_round

EXAMPLES = Path(__file__).parents[1] / "examples"
Row = dict[str, Any]
PIECE = {"cpu": 1 << 22, "cuda": 1 << 26}
FORMS = ("fixed", "unbiased16", "unbiased", "prior16", "prior")

# --- clients

TRIAL = """
import json, resource, sys, time
import torch
torch.set_num_threads(1)
import fetchsgd
population, cohort, rounds = map(int, sys.argv[1:4])
task, epochs = {"name": "many_clients:crowd", "clients": population}, rounds * cohort / population
extra = json.loads(sys.argv[4])
seen = []
fetchsgd.simulate(
    task, "fetchsgd", clients_per_round=cohort, epochs=epochs, eval_every=epochs,
    progress=lambda now: seen.append(time.perf_counter()), **extra,
)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
seconds = (seen[-1] - seen[0]) / (rounds - 1)
print(json.dumps({"peak_mb": round(peak), "seconds_per_round": round(seconds, 4)}))
"""
TRIALS = [
    *((population, 1000, 4, {}) for population in (10**5, 10**6, 10**7)),
    *((10**7, cohort, 4, {}) for cohort in (10**2, 10**4)),
    *((10**7, 10**4, 4, {"sampling": how}) for how in ("uniform", "poisson")),
    (10**7, 10**4, 100, {}),
    *((10**7, cohort, 4, {"bits": 8}) for cohort in (10**3, 10**4)),
]


def client_rows(scale: float) -> Iterator[Row]:
    for population, cohort, rounds, extra in TRIALS:
        cohort = max(int(cohort * scale), 1)
        words = [str(population), str(cohort), str(rounds), json.dumps(extra)]
        done = subprocess.run(
            [sys.executable, "-c", TRIAL, *words],
            cwd=EXAMPLES, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        each = 1e6 * found["seconds_per_round"] / cohort
        yield {
            "population": population, "cohort": cohort, "rounds": rounds, **extra, **found,
            "microseconds_per_client": round(each, 1),
        }  # fmt: skip


# --- weights


@dataclass
class Meter:
    """Peak memory and seconds of parts, one after another."""

    device: str
    dim: int
    rows: list[Row] = field(default_factory=list)
    base: int = 0

    def __post_init__(self) -> None:
        self.base = self.now()

    def now(self) -> int:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated()
        return _status("VmRSS")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self.now()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        start = time.perf_counter()
        yield
        if self.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else _status("VmHWM")
        row = {
            "part": name,
            "beside_per_weight": round((peak - before) / self.dim, 3),
            "peak_per_weight": round((peak - self.base) / self.dim, 3),
            "seconds": round(seconds, 3),
        }
        self.rows.append(row)
        print(json.dumps(row), flush=True)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def method_of(form: str, dim: int, compression: int, block: int = 0) -> FetchSGD:
    cols, k = dim // compression, max(dim // 1000, 1)
    if form == "fixed":
        return FetchSGD(dim=dim, k=k, cols=cols, hash="fixed", block=block)
    decode = "prior" if form.startswith("prior") else "unbiased"
    bits = 16 if "16" in form else 32
    return FetchSGD(dim=dim, k=k, cols=cols, decode=decode, state_bits=bits, block=block)


def gradient_sketch(sketch: CountSketch, base: torch.Tensor, seed: int) -> torch.Tensor:
    """Piece by piece, as layers' gradients come from a backward pass: the last layers first."""
    table = sketch.zeros(base.device)
    for first in reversed(range(0, sketch.dim, len(base))):
        scale = 1.0 / (1 + (first // len(base) + seed) % 7)
        sketch.add_part(table, base[: sketch.dim - first] * scale, first)
    return table


def weight_rows(dim: int, device: str, form: str, compression: int, rounds: int) -> list[Row]:
    where = torch.device(device)
    draw = torch.Generator(where).manual_seed(0)
    base = torch.randn(min(PIECE[device], dim), device=where, generator=draw)
    block = method_of(form, dim, compression).sketch.block
    _warm_up(method_of(form, min(1 << 18, dim), compression, block), base[: 1 << 18])
    meter = Meter(device, dim)
    with meter.part("weights"):
        weights = torch.zeros(dim, device=where)
        weights += 0.01  # all pages are there
    grid = Float32Grid((dim,), weights)
    with meter.part("ledger"):
        clients = 10_000_000
        ledger = Ledger.new(dim, clients, 1000, grid.downloads(), where)
        ledger.changed.fill_(0)
    with meter.part("hash"):
        method = method_of(form, dim, compression)
        method.message.at(0).query(
            method.sketch.zeros(where), torch.zeros(1, dtype=torch.int64, device=where)
        )
    with meter.part("state"):
        state = method.init(where)
        for part in state.values():
            part.fill_(0)
    training = Training(0, grid.start(weights), state, ledger)
    del state
    for t in range(rounds):
        cohort = np.arange(10_000) * 997 + t
        with meter.part(f"round {t}: a client's sketch"):
            table = gradient_sketch(method.message.at(t), base, t)
        with meter.part(f"round {t}: merge"):
            table = table + 0.5 * table
        if t == 0:
            with meter.part("top-k of a sketch, for comparison"):
                method.message.at(t).top_k(table, method.k)
        with meter.part(f"round {t}: download of 10,000"):
            ledger.download(cohort, t, training.place)
        with meter.part(f"round {t}: step, ledger, weights"):
            merged = Merged(table, cohort, method.message.numbers, 1.0, table.new_zeros(()))
            training = after_round(training, merged, 0.1, method, grid, overwrite=True)
        with meter.part(f"round {t}: bytes of the downloads"):
            ledger.wire_bytes  # noqa: B018
    with meter.part("message for a client that comes back"):
        update = ledger.message(0, rounds, training.place)
    assert 0 < len(update.indices) <= rounds * method.k
    with meter.part("nothing"):
        pass
    return meter.rows


def _warm_up(method: FetchSGD, base: torch.Tensor) -> None:
    """Compiles what is compiled, so that it is neither timed nor weighed."""
    state = method.init(base.device)
    for t in range(2):
        at = method.message.at(t)
        table = at.zeros(base.device)
        at.add_part(table, base[: len(base) // 2], 0)
        at.top_k(table, method.k)
        _, state = method.overwriting_step(table, state, 0.1, round=t)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["clients", "weights", "table"])
    parser.add_argument("files", nargs="*", type=Path, help="whose runs are shown as a table")
    parser.add_argument("--dim", type=float, default=1e8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS)
    parser.add_argument("--compression", type=int, default=100, help="weights to a cell")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="of cohorts, for a quick look")
    parser.add_argument("--alone", action="store_true", help="one form, in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "table":
        print_table(given.files)
        return
    if given.alone:
        rows = weight_rows(
            int(given.dim), given.device, given.forms[0], given.compression, given.rounds
        )
    elif given.what == "clients":
        rows = []
        for row in client_rows(given.scale):
            rows.append(row)
            print(json.dumps(row), flush=True)
    else:
        for form in given.forms:
            rows = list(_apart(given, form))
            _summarise(form, rows)
            if given.out is not None:
                _write_run(given, form, rows)
        return
    if given.out is not None:
        about = {"environment": environment(given.device), "rows": rows}
        given.out.write_text(json.dumps(about, indent=1) + "\n")


def print_table(files: list[Path]) -> None:
    """Peaks of all runs, as docs/scale.md shows them, in bytes and in GB."""
    print("| form | weights | peak, bytes a weight | in all | measured on |")
    print("|---|---|---|---|---|")
    for run in (run for file in files for run in json.loads(file.read_text())["runs"]):
        peak = max(row["peak_per_weight"] for row in run["rows"])
        where = run["environment"]["hardware"].split(",")[0]
        total = f"{peak * run['dim'] / 1e9:.1f} GB"
        print(f"| `{run['form']}` | {run['dim']:.0e} | {peak:.1f} | {total} | {where} |")


def _summarise(form: str, rows: list[Row]) -> None:
    peak = max(row["peak_per_weight"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    print(f"{form}: at most {peak} bytes a weight, {seconds:.0f} s in all", flush=True)


def _write_run(given: argparse.Namespace, form: str, rows: list[Row]) -> None:
    """Into a list of runs, in the place of an earlier one of as many weights."""
    which = {"dim": given.dim, "form": form}
    runs = json.loads(given.out.read_text())["runs"] if given.out.exists() else []
    runs = [run for run in runs if {name: run[name] for name in which} != which]
    runs.append({**which, "environment": environment(given.device), "rows": rows})
    runs.sort(key=lambda run: (run["dim"], FORMS.index(run["form"])))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def _apart(given: argparse.Namespace, form: str) -> Iterator[Row]:
    """Each form in a process of its own, which begins without memory."""
    words = ["weights", "--alone", "--forms", form]
    for name in ("dim", "device", "compression", "rounds"):
        words += [f"--{name}", str(getattr(given, name))]
    print(form, flush=True)
    with subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            yield json.loads(line)
    if process.returncode:
        raise SystemExit(process.returncode)


if __name__ == "__main__":
    main()
