"""Other constants of a module whose Triton programs run on a GPU: compiled ahead, checked, timed.

Most of the time of such a trial is Triton's compiler, so several processes fill its cache on disk
first. If they fail, the programs are compiled when they are run.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from measure import medians

Constants = dict[str, Any]
CHECKS = 3
LIMIT = 300  # seconds, after which a program that waits for ever is ended


@contextmanager
def changed(module: ModuleType, constants: Constants) -> Iterator[None]:
    """The module, with some of its constants changed."""
    before = {name: getattr(module, name) for name in constants}
    for name, value in constants.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def label_of(constants: Constants) -> str:
    return " ".join(f"{name}={value}" for name, value in constants.items()) or "as they are"


def compile_only(program: Any, grid: Any, first: Any, /, *arguments: Any, **constants: Any) -> None:
    """Stands for `fetchsgd.launch.launch`."""
    program.warmup(first, *arguments, grid=grid, **constants)


def compile_ahead(compile_one: Callable[[Constants], None], tried: list[Constants]) -> None:
    """Call it for all constants in processes of their own; it is a function of the main file."""
    start = time.perf_counter()
    workers = min(len(tried), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    failed = 0
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        tasks = {pool.submit(compile_one, constants): constants for constants in tried}
        for task in as_completed(tasks):
            if error := task.exception():
                failed += 1
                print(f"not compiled ahead: {label_of(tasks[task])}: {str(error)[:200]}")
    taken = time.perf_counter() - start
    print(f"compiled {len(tried) - failed} of {len(tried)} ahead in {taken:.0f} s", flush=True)


def try_all(
    title: str,
    module: ModuleType,
    tried: list[Constants],
    functions: Mapping[str, Callable[[], object]],
    units: Mapping[str, float],
    same: Callable[[str, object], bool],
    repeats: int,
) -> None:
    """Print the times of all functions with each of the constants, in units, and the best of each.

    A line is printed when it is known, and all of them again with the best marked.
    """
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    lines: list[tuple[str, dict[str, float]]] = []
    for constants in tried:
        label = label_of(constants)
        try:
            with changed(module, constants):
                # A race may be lost one time and won another.
                wrong = {name for name, function in functions.items() for _ in range(CHECKS)
                         if not same(name, function())}  # fmt: skip
                taken = medians(functions, "cuda", repeats)
        except (
            Exception
        ) as error:  # too little shared memory, say: the others are still of interest
            print(f"{label}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        if wrong:
            label += f" WRONG: {', '.join(sorted(wrong))}"
        lines.append((label, {name: taken[name] / units[name] for name in functions}))
        print(
            f"... {label}: " + " ".join(f"{ratio:.2f}" for ratio in lines[-1][1].values()),
            flush=True,
        )
    faulthandler.cancel_dump_traceback_later()
    right = [ratios for label, ratios in lines if "WRONG" not in label]
    best = {name: min((ratios[name] for ratios in right), default=0.0) for name in functions}
    width = max(len(title), *(len(label) for label, _ in lines))
    print(f"\n{title:{width}}" + "".join(f"{name:>17}" for name in functions))
    for label, ratios in lines:
        marks = [f"{ratio:16.2f}{'*' if ratio == best[n] else ' '}" for n, ratio in ratios.items()]
        print(f"{label:{width}}" + "".join(marks), flush=True)
