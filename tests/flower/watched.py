"""Real federations under a test's eyes: a folder through which it and their processes meet.

The environment of Flower's processes names the folder. A client stands still in a phase while the
folder has a file `hold`, and says so by another one. Each client writes down what it is about to
mask, and the server every sum that it gets, so that a test can add up and compare.

The app of the tests calls stand_still, watch_client and watch_server; tests call the rest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flower.phases import PHASES, asked, phase_of

from fetchsgd.flower.secure import attempt, work

FOLDER = "FETCHSGD_TEST_WATCHED"


def folder():
    """Nothing where nobody watches."""
    found = os.environ.get(FOLDER)
    return None if found is None else Path(found)


def stand_still(message, client):
    """As long as the test wants it."""
    if folder() is None or (found := asked(message)) is None:
        return
    name = f"{found[0]}-{PHASES[phase_of(message)]}-{client}"
    hold = folder() / f"hold-{name}"
    if hold.exists():
        (folder() / f"held-{name}").touch()
    while hold.exists():
        time.sleep(0.05)


def watch_client():
    levels_of = work.levels_of

    def seen(setup, computed, client, round, *rest):
        levels, totals = levels_of(setup, computed, client, round, *rest)
        _write(f"plain-{round}-{client}", levels=levels, totals=totals)
        return levels, totals

    if folder() is not None:
        work.levels_of = seen


def watch_server():
    run = attempt.Attempt.run

    def seen(attempt):
        terms, found = attempt.terms, run(attempt)
        told = {"cells": found.cells, "totals": found.totals, "clients": np.array(found.clients)}
        _write(f"sum-{terms.round}-{terms.attempt}", bits=terms.bits, **told)
        return found

    if folder() is not None:
        attempt.Attempt.run = seen


def _write(name, **arrays):
    """As a whole, as processes here are killed."""
    partial = folder() / f"{name}-{os.getpid()}.partial"
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    partial.replace(folder() / f"{name}.npz")


class Watched:
    """The test's side."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.environment = folder, {FOLDER: str(folder)}

    def hold(self, round, phase, client):
        """Before the client is asked; returns whether it stands there, and what lets it go on.

        Once more for one that was killed there: whether it stands there again.
        """
        name = f"{round}-{phase}-{client}"
        hold, held = self.folder / f"hold-{name}", self.folder / f"held-{name}"
        hold.touch()
        held.unlink(missing_ok=True)
        return held.exists, hold.unlink

    def sums(self):
        """Of each attempt that came to its end its clients; every sum is right to the bit."""
        found = {}
        for path in sorted(self.folder.glob("sum-*.npz")):
            place = tuple(map(int, path.stem.split("-")[1:]))
            with np.load(path) as sum:
                found[place] = sum["clients"].tolist()
                plain = self._plain(place[0], found[place])
                check_sum(int(sum["bits"]), sum["cells"], sum["totals"], plain)
        return found

    def _plain(self, round, clients):
        files = (np.load(self.folder / f"plain-{round}-{client}.npz") for client in clients)
        return [(file["levels"], file["totals"]) for file in files]


def check_sum(bits, cells, totals, plain):
    """It is that of what its clients were about to mask."""
    wanted = sum(levels.astype(np.uint64) for levels, _ in plain) % (1 << bits)
    assert np.array_equal(cells, wanted)
    assert np.array_equal(totals, np.stack([totals for _, totals in plain]).sum(0))
