"""Versions of clients, against a plain array."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd.server.client_versions import FEW, ClientVersions


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.sampled_from([1, 50, FEW, FEW + 1, 200_000]))
def test_is_an_array(seed, clients):
    """Small at first, then a table that grows, then an array once that is smaller."""
    generator = np.random.default_rng(seed)
    versions, array = ClientVersions(clients), np.zeros(clients, np.int64)
    for version in range(1, 8):
        cohort = generator.choice(clients, min(clients, int(generator.integers(0, 30_000))), False)
        assert np.array_equal(versions.get(cohort), array[cohort])
        versions.put(cohort, version)
        array[cohort] = version
    assert np.array_equal(versions.get(np.arange(clients)), array)
    again = ClientVersions.restored(versions.tensors())
    wider = versions.for_clients(clients + 100)
    for other in (again, wider):
        assert np.array_equal(other.get(np.arange(clients)), array)
    assert wider[clients + 99] == 0
    assert versions.nbytes <= max(4 * clients, 12 << 10)


def test_memory_follows_those_who_were_seen():
    versions = ClientVersions(10_000_000)
    for first in range(0, 100_000, 10_000):
        versions.put(np.arange(first, first + 10_000) * 97, 1)
    assert versions.nbytes < 40 * 100_000
    assert sum(part.nbytes for part in versions.tensors().values()) < 17 * 100_000


def test_a_client_may_hold_an_older_version_again():
    versions = ClientVersions(1_000_000)
    versions[123_456] = 7
    versions[123_456] = 0
    assert versions[123_456] == 0


def test_refuses_clients_who_do_not_exist():
    versions = ClientVersions(100_000)
    for client in (-1, 100_000):
        with pytest.raises(IndexError, match="0 to 99999"):
            versions[client]


def test_a_saved_array_may_be_of_any_integers():
    saved = {"": torch.tensor([0, 3, 1], dtype=torch.int64)}
    assert ClientVersions.restored(saved).get(np.arange(3)).tolist() == [0, 3, 1]
