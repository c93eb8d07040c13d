"""The ledger against one that remembers every version of the weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd.methods import Delivered
from fetchsgd.server.grids import Float32Grid
from fetchsgd.server.ledger import Ledger
from fetchsgd.vector import SparseVector

CPU = torch.device("cpu")


def grid(dim):
    return Float32Grid((dim,), torch.zeros(dim))


def new(dim, clients, rounds):
    return Ledger.new(dim, clients, rounds, grid(dim).downloads(), CPU)


def anywhere(dim):
    return grid(dim).start(torch.zeros(dim))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), dim=st.integers(1, 30), rounds=st.integers(1, 15))
def test_counts_what_differs_between_versions(seed, dim, rounds):
    generator = np.random.default_rng(seed)
    clients = 6
    ledger = new(dim, clients, rounds)
    changes: list[set[int]] = [set()]  # coordinates that each version changed
    held, down, up = [0] * clients, 0, 0
    merged = np.zeros(clients, np.int64)
    for t in range(rounds):
        cohort = generator.permutation(clients)[: generator.integers(1, clients + 1)]
        ledger.download(cohort, t, anywhere(dim))
        for client in cohort:
            down += len(set().union(*changes[held[client] + 1 : t + 1]))
            held[client] = t
        sent = int(generator.integers(0, 100))
        ledger.upload(cohort, t + 1, sent, 10.0 * sent)
        up += sent
        merged[cohort] = t + 1
        values = np.where(generator.random(dim) < 0.4, generator.standard_normal(dim), 0)
        dense = torch.from_numpy(values.astype(np.float32))
        if generator.random() < 0.3:
            ledger.update(Delivered(dense), t + 1)
        else:  # sparse updates may hold zeros, which change nothing
            chosen = np.sort(generator.permutation(dim)[: generator.integers(0, dim + 1)])
            values[np.setdiff1d(np.arange(dim), chosen)] = 0
            at = torch.from_numpy(chosen)
            ledger.update(Delivered(SparseVector(dim, at, dense[at])), t + 1)
        changes.append(set(np.flatnonzero(values)))
    assert ledger.bytes == (4 * up, 4 * down)
    assert ledger.wire_bytes.up == 10 * up
    assert ledger.wire_bytes.down >= 4 * down
    assert int(ledger.changed_in.sum()) == dim
    assert ledger.merged.get(np.arange(clients)).tolist() == merged.tolist()


def test_a_client_that_never_took_part_fetches_all_that_ever_changed():
    ledger = new(10, 2, 5)
    ledger.update(Delivered(SparseVector(10, torch.tensor([1, 2]), torch.ones(2))), 1)
    ledger.update(Delivered(SparseVector(10, torch.tensor([2, 3]), torch.ones(2))), 2)
    ledger.download(np.array([0]), 2, anywhere(10))
    assert ledger.bytes == (0, 4 * 3)
    ledger.download(np.array([0]), 2, anywhere(10))
    assert ledger.bytes == (0, 4 * 3)


def test_memory_does_not_grow_with_the_population():
    small, large = (new(5, clients, 3) for clients in (100_000, 10_000_000))
    for ledger in (small, large):
        ledger.download(np.arange(0, 100_000, 10), 0, anywhere(5))
        ledger.upload(np.arange(0, 100_000, 10), 1, 0, 0.0)
    size = lambda ledger: sum(t.nbytes for t in ledger.tensors().values())
    assert size(large) == size(small)
    assert large.held.nbytes == small.held.nbytes


def test_a_weight_takes_two_bytes_until_versions_need_more():
    size = lambda rounds: new(1000, 2, rounds).changed.nbytes
    assert (size(32_767), size(32_768)) == (2000, 4000)
    longer = new(1000, 2, 10).for_rounds(40_000)
    longer.update(Delivered(SparseVector(1000, torch.tensor([7]), torch.ones(1))), 39_999)
    assert longer.changed[7] == 39_999
    assert longer.changed_in[39_999] == 1


def test_room_for_more_clients_forgets_nobody():
    ledger = new(5, 10, 3)
    ledger.download(np.array([3]), 1, anywhere(5))
    ledger.upload(np.array([3]), 2, 0, 0.0)
    wider = ledger.for_clients(100_000)
    for versions, version in ((wider.held, 1), (wider.merged, 2)):
        assert len(versions) == 100_000
        assert versions.get(np.array([3, 4, 99_999])).tolist() == [version, 0, 0]


def test_dense_updates_are_counted_in_slices(monkeypatch):
    """As if they were counted at once."""
    ledgers = [new(1000, 2, 5) for _ in range(2)]
    for version in range(1, 5):
        generator = torch.Generator().manual_seed(version)
        values = torch.randn(1000, generator=generator).relu()
        for ledger, size in zip(ledgers, (1 << 24, 37), strict=True):
            monkeypatch.setattr("fetchsgd.server.ledger.SLICE", size)
            ledger.update(Delivered(values), version)
    whole, sliced = ledgers
    assert torch.equal(whole.changed, sliced.changed)
    assert torch.equal(whole.changed_in, sliced.changed_in)


@pytest.mark.parametrize("clients", [50, 1_000_000])
def test_is_restored_as_it_was(clients):
    """Also from what earlier versions wrote: versions of all clients, and four bytes a weight."""
    ledger = new(20, clients, 6)
    cohort = np.array([3, 17, clients - 1])
    ledger.upload(cohort, 4, 10, 40.0)
    ledger.download(cohort, 5, anywhere(20))
    ledger.update(Delivered(SparseVector(20, torch.tensor([7]), torch.ones(1))), 5)
    saved = ledger.tensors()
    everyone = torch.from_numpy(ledger.held.get(np.arange(clients)))
    older = {n: part for n, part in saved.items() if not n.startswith(("held", "merged"))}
    older |= {"held": everyone, "changed": saved["changed"].int()}
    for tensors in (saved, older):
        again = Ledger.restored(tensors, grid(20).downloads(), CPU)
        assert again.held.get(np.arange(clients)).tolist() == everyone.tolist()
        assert again.bytes == ledger.bytes
        assert torch.equal(again.changed.int(), ledger.changed.int())
    assert Ledger.restored(saved, grid(20).downloads(), CPU).merged[17] == 4
