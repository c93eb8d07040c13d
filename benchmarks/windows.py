"""What a sliding window costs the server each round, beside vanilla error accumulation.

    python benchmarks/windows.py --device cpu  --out benchmarks/results/windows-cpu.json
    python benchmarks/windows.py --device cuda --out benchmarks/results/windows-cuda.json

A million weights, 100,000 columns, k = 10,000. Timed is the whole step of the server, lines 11 to
14 of Algorithm 1, in the middle of a run: all sketches of the window are in use. A row's ratio is
its time over vanilla's with as many rows. `tables` are the error sketches that are kept, `searched`
those that are in use, as for gradients of one length in random directions; `state` is what they
take between rounds and `peak` what a step takes beyond that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import environment, medians, report
from sketch import MB, _peak_cpu, _peak_cuda

from fetchsgd.methods import FetchSGD, State
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.windows import Histogram, SlidingWindow, Suffixes

DIM, COLS, K = 1_000_000, 100_000, 10_000
WINDOWS = (1, 4, 16, 64, 256)
EPS = 0.5
Row = dict[str, Any]


def method(rows: int, form: str = "", window: int = 0) -> FetchSGD:
    options: dict[str, Any] = {"momentum": 0.0, "window_eps": EPS}
    if form:
        options |= {"error": "window", "window": window, "window_form": form}
    return FetchSGD(DIM, k=K, cols=COLS, rows=rows, hash="fixed", **options)


def in_the_middle(made: FetchSGD, device: torch.device) -> State:
    """Sketches of sums of noise, of the ages that there are after three windows."""
    state = made.init(device)
    if made.windows is None:
        return state | {"error": torch.randn_like(state["error"])}
    is_histogram = made.window_form == "histogram"
    ages = _usual_ages(made.windows).to(device) if is_histogram else state["ages"]
    total, before = torch.zeros_like(state["momentum"]), 0
    for slot, age in reversed(Suffixes(state["error"], ages).oldest_first()):
        total += math.sqrt(age - before) * torch.randn_like(total)
        state["error"][slot], before = total, age
    return state | {"ages": ages}


def _usual_ages(window: SlidingWindow) -> torch.Tensor:
    """Of a histogram: they depend on norms alone, so a small sketch tells them."""
    small = Histogram(CountSketch(1000, 1, 512), window.window, EPS)
    held, generator = small.init(), torch.Generator().manual_seed(0)
    for gradient in torch.randn(3 * small.window, 1000, generator=generator):
        held = small.insert(held, small.sketch.sketch(gradient))
    return held.ages


def measured(rows: int, device: str, repeats: int) -> list[Row]:
    """Vanilla first, then both forms of every window; all take their steps in turn."""
    forms = [(form, window) for window in WINDOWS for form in ("overlapping", "histogram")]
    made = {"vanilla": method(rows)}
    made |= {f"{form} I={window}": method(rows, form, window) for form, window in forms}
    states = {name: in_the_middle(one, torch.device(device)) for name, one in made.items()}
    table = torch.randn(rows, COLS, device=device)
    steps: dict[str, Callable[[], object]] = {
        name: partial(one.step, table, states[name], 0.1) for name, one in made.items()
    }
    seconds = medians(steps, device, repeats)
    peak = _peak_cuda if device == "cuda" else _peak_cpu
    # Vanilla keeps a single sketch, without an age.
    ages = {name: state.get("ages", torch.ones(1)) for name, state in states.items()}
    return [
        {
            "what": f"r={rows} {name}",
            "measured": f"{taken * 1e3:.1f} ms",
            "ratio": taken / seconds["vanilla"],
            "tables": len(ages[name]),
            "searched": int((ages[name] > 0).sum()),
            "state_mb": 4 * states[name]["error"].numel() / MB,
            "peak_mb": peak(steps[name]) / MB,
        }
        for name, taken in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = [row for r in (1, 5) for row in measured(r, options.device, options.repeats)]
    report(found, environment(options.device), options.out)
    print(f"\n{'what':<26} {'tables':>7} {'searched':>9} {'state MB':>9} {'peak MB':>8}")
    for row in found:
        print(
            f"{row['what']:<26} {row['tables']:>7} {row['searched']:>9}"
            f" {row['state_mb']:>9.1f} {row['peak_mb']:>8.1f}"
        )


if __name__ == "__main__":
    main()
