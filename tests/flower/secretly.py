"""Federations with secure aggregation, without processes; and what may become of their messages."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from flower.fakegrid import FakeGrid
from flower.federations import config
from flower.phases import asked, phase_of
from flower.watched import check_sum

from fetchsgd.exchange.messages import ResendRequest, SecureReply
from fetchsgd.flower.keys import make_identities
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.secure import attempt, work
from fetchsgd.sums import ModularRound

CLIENTS = 12


@contextmanager
def quick_folder():
    """In memory where that can be: all that clients sign and keep is forced to the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        make_identities(Path(folder) / "keys", CLIENTS)
        yield Path(folder)


def own_folder(folder):
    """Another one there, with the keys of all."""
    own = Path(tempfile.mkdtemp(dir=folder))
    (own / "keys").symlink_to(folder / "keys")
    return own


def secret_federation(out, method="fetchsgd", clients=range(CLIENTS), **more):
    """Keys and states are beside the run folder: a second one there has the same."""
    given = {
        "upload__sum": "modular", "upload__secure": True, "upload__dropping": 0.2,
        "train__clients_per_round": 6, "train__epochs": 0.5,
        "federation__directory": str(out.parent / "keys" / "directory.json"),
        "federation__phase_deadline": 5.0, "federation__deadline": 10.0, "federation__wait": 10.0,
    }  # fmt: skip
    grid = FakeGrid(config(out, method, **given | more))
    for client in clients:
        grid.add(client, config=node_config(out, client))
    return grid


def node_config(out, client):
    keys = out.parent / "keys"
    return {
        "identity": str(keys / f"client-{client}"),
        "directory": str(keys / "directory.json"),
        "state": str(out.parent / "state"),
    }


def silent_from(phase, times=10**9):
    """A client that does not answer from that phase on, so many times."""
    left = [times]

    def behave(message, reply):
        if asked(message) is None or phase_of(message) < phase or left[0] == 0:
            return reply
        left[0] -= 1
        return None

    return behave


def changed_in(phase, change):
    """A client whose answers of one phase are changed: bytes in, bytes out."""

    def behave(message, reply):
        if phase_of(message) != phase or reply.has_error():
            return reply
        if isinstance(from_records(reply.content, SecureReply, ResendRequest), SecureReply):
            array = reply.content["payload"]["wire"]
            array.data = change(array.data)
            array.shape = (len(array.data),)
        return reply

    return behave


class Sums:
    """Looks on: what each client puts under its masks, and what comes out for the server."""

    def __init__(self, monkeypatch):
        self.plain, self.found, self.terms = {}, [], []
        levels_of, run = work.levels_of, attempt.Attempt.run

        def seen_levels(setup, computed, client, round, *rest):
            self.plain[round, client] = levels_of(setup, computed, client, round, *rest)
            return self.plain[round, client]

        def seen_run(attempt):
            self.terms.append(attempt.terms)
            found = run(attempt)
            self.found.append((attempt.terms, found))
            return found

        monkeypatch.setattr(work, "levels_of", seen_levels)
        monkeypatch.setattr(attempt.Attempt, "run", seen_run)

    def check(self):
        """Every sum is that of its clients, to the bit."""
        assert self.found
        for terms, found in self.found:
            plain = [self.plain[terms.round, client] for client in found.clients]
            check_sum(terms.bits, found.cells, found.totals, plain)

    @property
    def places(self):
        return [terms.place for terms in self.terms]

    @property
    def clients(self):
        return [found.clients for _, found in self.found]


class Opened:
    """Looks on: every sum that a server opens, in a federation or a simulation.

    Its residues, what its clients weigh, the step, and the mean that is read from them.
    """

    def __init__(self, monkeypatch):
        self.sums, open = [], ModularRound.open

        def seen_open(quantiser, levels, weight, layout, arrived=None):
            found = open(quantiser, levels, weight, layout, arrived)
            step = quantiser.step_on(levels.device).clone()
            self.sums.append((levels % (1 << quantiser.bits), int(weight), step, found.mean))
            return found

        monkeypatch.setattr(ModularRound, "open", seen_open)

    def take(self):
        """Those since the last time."""
        found, self.sums = self.sums, []
        return found


def same_sums(found, expected):
    """Of several rounds, to the bit."""
    assert len(found) == len(expected)
    for round, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        cells, weight, step, mean = ours
        assert torch.equal(cells, theirs[0]), f"{(cells != theirs[0]).sum()} cells, round {round}"
        assert weight == theirs[1]
        assert torch.equal(step, theirs[2])
        assert torch.equal(mean, theirs[3])
