"""What the server sees of one client is uniform noise, also to those who work with it.

Seeds are fixed. Counts of values are compared by a chi-square, on both sides at a level of 1e-6: of
a million comparisons with other seeds a right program fails two.
"""

import numpy as np
import pytest
from scipy.stats import chi2
from secure.rounds import Round, seed_of, terms_of

from fetchsgd.secure import keys, planes
from fetchsgd.secure.frames import HEADER_BYTES, SIGNATURE_BYTES, Kind, read_header
from fetchsgd.secure.masks import add_masks

LEVEL = 1e-6
CELLS = 60_000


def looks_uniform(values, kinds):
    counts = np.bincount(values, minlength=kinds)
    expected = values.size / kinds
    statistic = ((counts - expected) ** 2 / expected).sum()
    return LEVEL < chi2.cdf(statistic, kinds - 1) < 1 - LEVEL


def masked_vectors(bits, value, clients=5):
    """Of clients who all have the same number in each cell, from the messages the server got."""
    terms = terms_of(clients, cells=CELLS, bits=bits, dropping=0.2)
    found = Round(terms)
    for number in terms.cohort:
        totals = np.full(2, 7, dtype=np.uint64)
        found.inputs[number] = (np.full(CELLS, value, dtype=np.uint32), totals)
    found.play()
    assert found.check()
    vectors = {}
    for message in found.received:
        kind, number, _ = read_header(message)
        if kind is Kind.MASKED:
            skip = HEADER_BYTES + SIGNATURE_BYTES + 16
            vectors[number] = np.frombuffer(message[skip:-SIGNATURE_BYTES], "<u8").copy()
    assert len(vectors) == clients
    return found, vectors


@pytest.mark.parametrize(("bits", "value"), [(4, 0), (4, 15), (8, 0), (8, 200), (10, 3)])
def test_a_masked_vector_is_uniform(bits, value):
    _, vectors = masked_vectors(bits, value)
    cells = {n: planes.unpack(words, CELLS, bits) for n, words in vectors.items()}
    for number, found in cells.items():
        assert looks_uniform(found, 1 << bits), f"client {number}"
        pairs = (found[:-1:2] % 16) * 16 + found[1::2] % 16
        assert looks_uniform(pairs, 256), f"neighbouring cells of client {number}"
    for other in range(1, len(cells)):
        apart = (cells[0] - cells[other]) % (1 << bits)
        assert looks_uniform(apart, 1 << bits), f"clients 0 and {other}"


def test_without_masks_the_same_test_sees_it():
    rng = np.random.default_rng(0)
    nearly = rng.integers(0, 256, CELLS)
    assert looks_uniform(nearly, 256)
    nearly[:2000] = 7
    assert not looks_uniform(nearly, 256)
    assert not looks_uniform(np.arange(CELLS) % 256, 256)  # too even to be random


def test_two_honest_clients_are_enough_to_hide_each_other():
    """The server takes away what it knows: self-masks, and the masks of clients 2, 3 and 4.

    What is left of client 0 is its input under the mask that it shares with client 1.
    """
    bits = 8
    found, vectors = masked_vectors(bits, 42)
    words, totals = vectors[0], np.zeros(2, dtype=np.uint64)
    own = keys.OwnKeys.derive(seed_of(0), found.terms, 0)
    known = [(keys.self_mask_key(own.self_mask, found.terms, 0), True)]
    for other in (2, 3, 4):
        key = keys.OwnKeys.derive(seed_of(other), found.terms, other).mask
        public = own.mask.public_key().public_bytes_raw()
        known.append((keys.pair_mask_key(key, public, found.terms, (other, 0)), True))
    add_masks(totals, words, bits, known)
    assert looks_uniform(planes.unpack(words, CELLS, bits), 256)
    key = keys.OwnKeys.derive(seed_of(1), found.terms, 1).mask
    public = own.mask.public_key().public_bytes_raw()
    last = (keys.pair_mask_key(key, public, found.terms, (0, 1)), True)
    add_masks(totals, words, bits, [last])
    assert set(planes.unpack(words, CELLS, bits)) == {42}


def test_masks_of_different_rounds_have_nothing_in_common():
    bits = 8
    vectors = []
    for number in (1, 2):
        terms = terms_of(3, cells=CELLS, bits=bits, dropping=0.0, round=number)
        found = Round(terms)  # with the same seeds, as if a client's generator were broken
        found.play(until=3)
        message = next(m for m in found.received if read_header(m)[:2] == (Kind.MASKED, 0))
        skip = HEADER_BYTES + SIGNATURE_BYTES + 16
        vectors.append(planes.unpack(np.frombuffer(message[skip:-64], "<u8").copy(), CELLS, bits))
        assert np.array_equal(found.inputs[0][0], Round(terms).inputs[0][0])
    assert looks_uniform((vectors[0] - vectors[1]) % 256, 256)
