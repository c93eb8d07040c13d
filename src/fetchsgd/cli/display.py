"""What a person sees while a run goes on: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fetchsgd.formatting import format_bytes, format_clock
from fetchsgd.runs.recorder import Progress as Seen
from fetchsgd.runs.recorder import Watch
from fetchsgd.simulation.sweep_jobs import TELLS

LINE_EVERY = 10.0  # seconds
TELL_EVERY = 0.5


def describe(seen: Seen, metric: str, speed: float) -> str:
    """rounds/s, loss, metric, bytes up and down, time left."""
    left = (seen.rounds - seen.round) / speed if speed else 0.0
    value = "" if seen.metric is None else f"  {metric} {seen.metric:.4f}"
    return (
        f"{speed:.3g} rounds/s  {_loss(seen, 4)}{value}  "
        f"up {format_bytes(seen.up)}  down {format_bytes(seen.down)}  {format_clock(left)} left"
    )


class Speed:
    """Rounds per second since the display began, which after --resume is not round 0."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first: int | None = None

    def of(self, seen: Seen) -> float:
        if self.first is None:
            self.first = seen.round - 1
        return (seen.round - self.first) / max(time.perf_counter() - self.began, 1e-9)


@contextmanager
def watching(console: Console, name: str, metric: str) -> Iterator[Watch]:
    """A display for one run; lines of JSON where another process draws it."""
    if TELLS in os.environ:
        yield teller()
    elif console.is_terminal:
        columns = (
            TextColumn("{task.fields[label]}"),
            BarColumn(20),
            TextColumn("{task.fields[text]}"),
        )
        with Progress(*columns, console=console, refresh_per_second=4) as bar:
            task = bar.add_task("run", total=None, label=name, text="")
            speed = Speed()

            def show(seen: Seen) -> None:
                text = describe(seen, metric, speed.of(seen))
                bar.update(task, total=seen.rounds, completed=seen.round, text=text)

            yield show
    else:
        yield lines(console, name, metric)


def teller() -> Watch:
    """Says where a run stands, for the process that has started this one; now and then."""
    last = 0.0

    def show(seen: Seen) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= TELL_EVERY or seen.round == seen.rounds:
            last = now
            print(json.dumps(asdict(seen)), flush=True)

    return show


def _short(seen: Seen, speed: float) -> str:
    """What fits beside the name of a run: the last value, the loss, the time that is left."""
    value = "" if seen.metric is None else f"{seen.metric:.4f}  "
    left = format_clock((seen.rounds - seen.round) / speed)
    return f"{value}{_loss(seen, 3)}  {left} left"


class SweepDisplay:
    """Several runs: a bar for all and a line for each that goes on, or plain lines elsewhere."""

    def __init__(self, console: Console, runs: int) -> None:
        self.console = console
        columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.all = self.bar.add_task("runs", total=runs, text="runs")
        self.speeds: dict[str, Speed] = {}
        self.tasks: dict[str, TaskID] = {}
        self.said: dict[str, float] = {}

    def __enter__(self) -> SweepDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def seen(self, name: str, seen: Seen) -> None:
        """A run stands there now."""
        if name not in self.speeds:
            self.speeds[name], self.said[name] = Speed(), time.perf_counter()
            self.tasks[name] = self.bar.add_task(name, total=seen.rounds, text="")
        speed = self.speeds[name].of(seen)
        text = f"{name}  {_short(seen, speed)}"
        self.bar.update(self.tasks[name], completed=seen.round, text=text)
        if not self.console.is_terminal and time.perf_counter() - self.said[name] >= LINE_EVERY:
            self.said[name] = time.perf_counter()
            line = f"{name}: round {seen.round}/{seen.rounds}  {_short(seen, speed)}"
            self.console.print(line, soft_wrap=True, highlight=False)

    def done(self, name: str) -> None:
        """A run has ended."""
        self.bar.advance(self.all)
        if name in self.tasks:
            self.bar.remove_task(self.tasks.pop(name))


def lines(console: Console, name: str, metric: str) -> Watch:
    """A plain line now and then, and at the end."""
    speed = Speed()
    last = time.perf_counter()

    def show(seen: Seen) -> None:
        nonlocal last
        rate = speed.of(seen)
        if seen.round == seen.rounds or time.perf_counter() - last >= LINE_EVERY:
            last = time.perf_counter()
            text = describe(seen, metric, rate)
            console.print(
                f"{name}: round {seen.round}/{seen.rounds}  {text}", soft_wrap=True, highlight=False
            )

    return show


def _loss(seen: Seen, digits: int) -> str:
    return "loss unknown" if math.isnan(seen.loss) else f"loss {seen.loss:.{digits}f}"
