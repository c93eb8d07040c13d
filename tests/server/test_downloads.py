"""Clients that come and go end up with the server's weights to the bit, by real messages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fetchsgd.server.grids import GRIDS, floats, steps, walk
from fetchsgd.server.grids.step_log import StepLog
from fetchsgd.server.grids.walk import missed_statistics
from fetchsgd.server.ledger import Ledger
from fetchsgd.vector import FlatModel, SparseVector
from fetchsgd.wire import decode, encode
from fetchsgd.wire.chunk_sizes import update_bytes
from fetchsgd.wire.chunk_statistics import chunk_statistics

CPU = torch.device("cpu")


class Server:
    """A grid, its messages and a ledger, moved by random updates."""

    def __init__(self, name, seed, clients=6, rounds=20, log=4, module=None):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = FlatModel(module or nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 4)))
        self.origin = model.weights()
        self.dim = len(self.origin)
        options = {"log": log} if name == "steps" else {}
        self.grid = GRIDS[name](tuple(model.sizes), self.origin, **options)
        self.downloads = self.grid.downloads()
        self.ledger = Ledger.new(self.dim, clients, rounds, self.downloads, CPU)
        self.position = self.grid.start(self.origin)
        self.version = 0
        self.draw = np.random.default_rng(seed)

    def step(self, density=0.3, scale=0.1):
        k = int(density * self.dim)
        chosen = torch.from_numpy(np.sort(self.draw.permutation(self.dim)[:k]))
        values = torch.from_numpy(scale * self.draw.standard_normal(k)).float()
        sent = self.grid.deliver(self.position)(SparseVector(self.dim, chosen, values))
        self.position = self.grid.move(self.position, sent)
        self.version += 1
        self.ledger.update(sent, self.version)

    def message(self, held):
        changed = self.ledger.changed
        return encode(self.downloads.message(held, self.version, self.position, changed))


class Client:
    """Knows the seed, so w0, and keeps what the grid says of what it fetched."""

    def __init__(self, server):
        self.grid, self.held = server.grid, None

    @property
    def version(self):
        return 0 if self.held is None else self.held.version

    def fetch(self, message):
        update = decode(message)
        assert self.grid.fits(self.held, update)
        self.held, self.weights = self.grid.receive(self.held, update)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("name", GRIDS)
def test_any_pattern_of_missed_rounds(name, seed):
    server = Server(name, seed)
    clients = [Client(server) for _ in range(5)]
    for _ in range(20):
        server.step(density=server.draw.uniform(0, 0.5))
        for client in clients:
            if server.draw.random() < 0.15:  # so gaps are longer than the log of 4, often
                client.fetch(server.message(client.version))
                assert torch.equal(client.weights, server.position.weights)


def test_a_client_older_than_the_log_gets_everything():
    server = Server("steps", 0)
    early, late = Client(server), Client(server)
    server.step()
    late.fetch(server.message(0))
    for _ in range(8):
        server.step()
    assert late.version == 1
    assert decode(server.message(late.version)).since == 0
    for client in (early, late):
        client.fetch(server.message(client.version))
        assert torch.equal(client.weights, server.position.weights)


def test_the_oldest_version_in_the_log_is_still_there():
    server = Server("steps", 0)
    for _ in range(9):
        server.step()
    oldest = server.downloads.log.oldest
    assert [decode(server.message(held)).since for held in (oldest - 1, oldest)] == [0, oldest]


def test_nothing_new_is_an_empty_message():
    server = Server("steps", 0)
    server.step()
    assert len(decode(server.message(server.version)).indices) == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 12))
def test_the_walk_counts_what_the_sums_have(seed, rounds):
    server = Server("steps", seed)
    seen = [server.position.steps]
    for _ in range(rounds):
        server.step(scale=1.0)
        seen.append(server.position.steps)
    held = [int(v) for v in server.draw.integers(0, rounds + 1, 9)]
    log = server.downloads.log
    clients, found = missed_statistics(log, held, server.position.steps)
    reached = [version if version >= log.oldest else 0 for version in held]
    versions = sorted(set(reached), reverse=True)
    assert clients == [reached.count(version) for version in versions]
    differences = torch.stack([seen[-1] - seen[version] for version in versions])
    assert_same(found, chunk_statistics(differences))


def assert_same(a, b):
    for name in ("counts", "values", "nonzeros"):
        assert torch.equal(getattr(a, name).cpu(), getattr(b, name).cpu()), name


@pytest.mark.parametrize("name", GRIDS)
def test_counted_bytes_are_those_of_the_messages(name):
    """To half a percent, for messages that are not tiny: the simulator writes none of them."""
    server = Server(name, 1, clients=4, rounds=30, log=6, module=nn.Linear(300, 300))
    really, versions = 0, [0, 0, 0, 0]
    for round in range(1, 25):
        server.step(density=0.05, scale=0.02)
        cohort = server.draw.permutation(4)[:2]
        server.ledger.download(cohort, round, server.position)
        for client in cohort:
            really += len(server.message(versions[client]))
            versions[client] = round
    assert really > 50_000
    assert server.ledger.wire_bytes.down == pytest.approx(really, rel=0.005)


@pytest.mark.parametrize("name", GRIDS)
def test_bytes_are_counted_once_however_often_they_are_worked_out(name, monkeypatch):
    totals = []
    for most in (1 << 24, 0):  # at the end, and in every round
        for module in (floats, steps):
            monkeypatch.setattr(module, "MOST_KEPT", most)
        server = Server(name, 1)
        for round in range(1, 6):
            server.step()
            server.ledger.download(np.arange(3), round, server.position)
        totals.append(server.ledger.wire_bytes.down)
        assert server.ledger.wire_bytes.down == totals[-1]
    assert totals[1] == pytest.approx(totals[0], abs=1)


def test_the_log_is_bounded_in_entries_too():
    log = StepLog(dim=10, length=100)
    everywhere = torch.arange(10)
    for version in range(1, 20):
        log.append(version, everywhere, torch.ones(10, dtype=torch.int32))
    assert len(log.entries) == 4
    assert log.oldest == 15
    with pytest.raises(ValueError, match="from 15 to 19"):
        log.since(14)


def test_a_log_is_restored_from_its_tensors():
    server = Server("steps", 3)
    for _ in range(7):
        server.step()
    copy = StepLog(server.dim, 4)
    copy.restore(server.downloads.tensors(), CPU)
    assert (copy.oldest, copy.newest) == (3, 7)
    for a, b in zip(copy.since(4), server.downloads.log.since(4), strict=True):
        assert torch.equal(a, b)


def test_sizes_between_versions_follow_from_those_that_are_counted(monkeypatch):
    """In sum to a fifth of a percent, for clients that come back after any number of rounds."""
    server = Server("steps", 2, rounds=100, log=100, module=nn.Linear(300, 300))
    for _ in range(90):
        server.step(density=0.02, scale=0.02)
    log, steps = server.downloads.log, server.position.steps
    held = [int(v) for v in 90 - server.draw.exponential(30, 80).clip(0, 90)]
    assert len(set(held)) > 2 * walk.MOST_COUNTED

    def total():
        clients, found = missed_statistics(log, held, steps)
        assert sum(clients) == pytest.approx(len(held))
        return len(clients), float(update_bytes(found, log.dim) @ torch.tensor(clients).double())

    rows, some = total()
    assert rows <= walk.MOST_COUNTED + 1
    monkeypatch.setattr(walk, "MOST_COUNTED", 1000)
    assert some == pytest.approx(total()[1], rel=0.002)


@pytest.mark.gpu
def test_the_walk_on_the_gpu():
    server = Server("steps", 5, rounds=100, log=100)
    for _ in range(60):
        server.step(scale=3.0)
    log, steps, held = server.downloads.log, server.position.steps, [0, 60, 59, 3, 30, 30]
    _, expected = missed_statistics(log, held, steps)
    copy = StepLog(server.dim, 100)
    copy.restore(server.downloads.tensors(), torch.device("cuda"))
    assert_same(missed_statistics(copy, held, steps.cuda())[1], expected)
