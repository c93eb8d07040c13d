"""Whoever drops out and whatever happens to messages: the right sum to the bit, or none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure.rounds import ANSWERS, NEVER, Round, terms_of

from fetchsgd.secure import RefusedError
from fetchsgd.secure.frames import HEADER_BYTES

COHORTS = st.lists(st.integers(0, 199), min_size=3, max_size=8, unique=True)


@st.composite
def cohorts(draw):
    numbers = sorted(draw(COHORTS))
    count = len(numbers)
    dropping = draw(st.integers(0, (count - 2) // 2))
    colluding = draw(st.integers(0, count - 2 - 2 * dropping))
    bits, cells = draw(st.integers(4, 32)), draw(st.integers(1, 200))
    return terms_of(numbers, cells, bits, colluding / count, dropping / count)


@settings(max_examples=40)
@given(st.data())
def test_any_pattern_of_dropouts(data):
    """As many as the terms allow never stop a round; more may."""
    terms = data.draw(cohorts())
    allowed = len(terms.cohort) - terms.least
    gone = data.draw(st.lists(st.sampled_from(terms.cohort), unique=True, max_size=allowed + 1))
    drops = {number: data.draw(st.integers(0, NEVER - 1)) for number in gone}
    found = Round(terms, drops, through_bytes=True).play(shuffle=data.draw(st.integers(0, 9)))
    done = found.check()
    assert not found.refused
    assert done or len(drops) > allowed
    if done:
        left = {number for number in terms.cohort if drops.get(number, NEVER) > 2}
        assert set(found.server.result.clients) == left


@pytest.mark.parametrize("phase", range(5))
def test_as_many_dropouts_as_allowed_in_one_phase(phase):
    terms = terms_of(10, colluding=0.2, dropping=0.2)
    found = Round(terms, {3: phase, 7: phase}).play()
    assert found.check()
    assert len(found.server.result.clients) == (8 if phase <= 2 else 10)


@pytest.mark.parametrize("phase", range(5))
def test_one_more_dropout_than_allowed(phase):
    """Sums of too few are refused; after the vectors are in it is the threshold that counts."""
    terms = terms_of(10, colluding=0.2, dropping=0.2)
    drops = dict.fromkeys(range(3 if phase <= 2 else 4), phase)
    found = Round(terms, drops).play()
    assert not found.check()
    assert "the round is dropped" in str(found.failure)
    with pytest.raises(RefusedError, match="over"):
        found.server.close()


def test_a_sparse_graph():
    terms = terms_of(40, cells=500, colluding=0.05, dropping=0.1)
    assert not terms.parameters(40).complete
    drops = {1: 0, 5: 1, 9: 2, 20: 4}
    found = Round(terms, drops).play()
    assert found.check()
    assert not found.refused
    assert len(found.server.result.clients) == 37


def flip(message, at):
    changed = bytearray(message)
    changed[at % len(message)] ^= 1 << at % 8
    return bytes(changed)


class Meddler:
    """Does something to chosen messages, with what it has seen before at hand."""

    def __init__(self, deeds, earlier):
        self.deeds, self.earlier = deeds, earlier

    def __call__(self, way):
        def meddle(phase, number, message):
            for deed, where, at in self.deeds:
                if where == (way, phase, number):
                    return self.act(deed, message, at)
            self.earlier.append(message)
            return [message]

        return meddle

    def act(self, deed, message, at):
        seen = self.earlier[at % len(self.earlier)] if self.earlier else b""
        return {
            "flip": [flip(message, at)],
            "flip the body": [flip(message, HEADER_BYTES + at % (len(message) - HEADER_BYTES))],
            "cut": [message[: at % len(message)]],
            "longer": [message + bytes(1 + at % 3)],
            "other": [seen],
            "both": [seen, message],
            "twice": [message, message],
            "late": [message, seen],
            "nothing": [],
        }[deed]


DEEDS = ["flip", "flip the body", "cut", "longer", "other", "both", "twice", "late", "nothing"]


BEFORE = Round(terms_of(5, colluding=0.2, dropping=0.2, round=0)).play()
WAYS = ("down", "up")


def meddled(deeds, shuffle):
    """Replays come from this round and from one before it, with the same clients."""
    meddler = Meddler(deeds, [message for *_, message in BEFORE.sent])
    terms = terms_of(5, colluding=0.2, dropping=0.2)
    found = Round(terms, down=meddler("down"), up=meddler("up"))
    return found.play(shuffle=shuffle)


@pytest.mark.parametrize("deed", DEEDS)
def test_one_message_that_is_not_as_it_was(deed):
    """At worst one client drops out, which the terms allow: the sum is right to the bit."""
    rng = np.random.default_rng(DEEDS.index(deed))
    for way in WAYS:
        for phase in range(len(ANSWERS)):
            for _ in range(3 if deed.startswith("flip") and phase == 2 else 1):
                where = (way, phase, int(rng.integers(5)))
                found = meddled([(deed, where, int(rng.integers(10_000)))], shuffle=0)
                assert found.check(), (where, found.failure)
                assert len(found.server.result.clients) >= 4


@settings(max_examples=40)
@given(st.data())
def test_messages_that_are_mangled_replayed_or_reordered(data):
    where = st.tuples(st.sampled_from(WAYS), st.integers(0, len(ANSWERS) - 1), st.integers(0, 4))
    deed = st.tuples(st.sampled_from(DEEDS), where, st.integers(0, 10_000))
    deeds = data.draw(st.lists(deed, min_size=2, max_size=4))
    meddled(deeds, data.draw(st.integers(0, 9))).check()


@pytest.mark.parametrize("bits", [4, 5, 10, 32])
def test_sums_wrap_around(bits):
    terms = terms_of(6, cells=1000, bits=bits)
    found = Round(terms)
    for number in terms.cohort:
        cells = np.full(1000, (1 << bits) - 1, dtype=np.uint32)
        found.inputs[number] = (cells, np.full(2, (1 << 64) - 1, dtype=np.uint64))
    assert found.play().check()
    assert set(found.server.result.cells) == {(1 << bits) - 6}
    assert set(found.server.result.totals.tolist()) == {(1 << 64) - 6}
