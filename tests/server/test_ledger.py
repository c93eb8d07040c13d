"""The ledger against one that remembers every version of the weights."""

import numpy as np
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
    assert ledger.merged.tolist() == merged.tolist()


def test_a_client_that_never_took_part_fetches_all_that_ever_changed():
    ledger = new(10, 2, 5)
    ledger.update(Delivered(SparseVector(10, torch.tensor([1, 2]), torch.ones(2))), 1)
    ledger.update(Delivered(SparseVector(10, torch.tensor([2, 3]), torch.ones(2))), 2)
    ledger.download(np.array([0]), 2, anywhere(10))
    assert ledger.bytes == (0, 4 * 3)
    ledger.download(np.array([0]), 2, anywhere(10))
    assert ledger.bytes == (0, 4 * 3)


def test_memory_is_sixteen_bytes_a_client():
    small, large = (new(5, clients, 3) for clients in (10, 1_000_010))
    size = lambda ledger: sum(t.numel() * t.element_size() for t in ledger.tensors().values())
    assert size(large) - size(small) == 16 * 1_000_000
