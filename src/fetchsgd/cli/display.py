"""What a person sees while a run goes on: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fetchsgd.formatting import format_bytes, format_clock
from fetchsgd.runs.recorder import Progress as Seen
from fetchsgd.runs.recorder import Watch

LINE_EVERY = 10.0  # seconds


def describe(seen: Seen, metric: str, speed: float) -> str:
    """rounds/s, loss, metric, bytes up and down, time left."""
    left = (seen.rounds - seen.round) / speed if speed else 0.0
    value = "" if seen.metric is None else f"  {metric} {seen.metric:.4f}"
    return (
        f"{speed:.3g} rounds/s  loss {seen.loss:.4f}{value}  "
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
    """A display for one run."""
    if console.is_terminal:
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
