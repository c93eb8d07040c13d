"""Commands in several processes at once, as torchrun starts them: who speaks, and how they end.

A mistake is every process's, and a person wants to read of it once. A process that dies takes the
others with it: they notice when they next wait for it, or when torchrun ends them by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from fetchsgd.cli.going_on import STOPPED
from fetchsgd.errors import DivergedError, MachineError, UserError
from fetchsgd.ranks import LostError, Ranks, joined, started_together

PATIENCE = 3.0  # seconds that others leave to the first process, to say what is wrong
LISTENING = 1.0  # seconds that it leaves to them, to hear that it has
GRACE = 10.0  # seconds until a signal is noticed; torchrun kills after 30
TOLD, HEARD = "told", "heard"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def together() -> Iterator[Ranks]:
    """All processes of a command; what goes wrong is told by one of them."""
    if not started_together():
        with joined() as alone:
            yield alone
        return
    with ended_by_signals(), joined() as ranks:
        try:
            yield ranks
        except (UserError, DivergedError) as error:
            _ignore_signals()
            if _tells(ranks):
                raise
            raise typer.Exit(exit_code(error)) from error


def refuse_together(command: str) -> None:
    """For commands that train many models: one process starts the others as it needs them."""
    if started_together():
        with together():
            raise UserError(
                f"fetchsgd {command} starts its runs itself: run it without torchrun; --jobs says "
                "how many at the same time, and spreads them over the GPUs"
            )


def exit_code(error: UserError | DivergedError) -> int:
    if isinstance(error, DivergedError):
        return 3
    return 4 if isinstance(error, MachineError) else 2


def _tells(ranks: Ranks) -> bool:
    """Whether this process is the one that speaks: the first, or one that waited for it in vain."""
    store = ranks.store
    assert store is not None
    try:
        if not ranks.is_first and _comes(lambda: store.check([TOLD]), PATIENCE):
            store.add(HEARD, 1)
            return False
        tells = int(store.add(TOLD, 1)) == 1
        if ranks.is_first:  # who may keep the store, and must not take it away too soon
            _comes(lambda: int(store.add(HEARD, 0)) == ranks.size - 1, LISTENING)
    except RuntimeError:  # the store was another process's, which has ended
        return True
    return tells


def _comes(is_there: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_there():
            return True
        time.sleep(0.02)
    return False


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGINT is Ctrl-C, SIGTERM that another process has died. Either ends this one soon.

    While a process waits for others inside of torch, Python handles no signal; a thread sees to it
    that it ends all the same.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    noticed = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        noticed.set()
        _ignore_signals()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise LostError("another process of this run has ended, or torchrun was told to end")

    before = {number: signal.signal(number, end) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, noticed), daemon=True).start()
    try:
        yield
    finally:
        noticed.set()
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            # While a process ends, torchrun may still tell it to.
            signal.signal(number, signal.SIG_IGN if sys.exc_info()[0] else handler)
        os.close(write)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _watch(read: int, noticed: threading.Event) -> None:
    signals = os.read(read, 1)
    os.close(read)
    if signals and not noticed.wait(GRACE):
        code = STOPPED if signals[0] == signal.SIGINT else 4
        print(
            "error: this process was told to end while it waited for one that has ended before; "
            "--resume goes on from the last checkpoint",
            file=sys.stderr,
            flush=True,
        )
        os._exit(code)
