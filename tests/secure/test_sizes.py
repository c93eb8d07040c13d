"""The bytes that a simulator counts are those that the state machines send."""

import pytest
from secure.rounds import Round, terms_of

from fetchsgd.secure import protocol_bytes

PHASES = ("advertise", "share", "mask", "agree", "reveal")


@pytest.mark.parametrize(
    ("clients", "cells", "bits", "drops"),
    [
        (3, 1, 4, {}),
        (9, 1000, 6, {}),
        (10, 130, 8, {0: 0, 4: 2}),
        (10, 64, 32, {1: 1, 5: 3}),
        (40, 700, 10, {}),
        (41, 700, 10, {2: 0, 3: 1, 9: 2, 30: 4}),
    ],
)
def test_bytes_are_those_that_were_sent(clients, cells, bits, drops):
    terms = terms_of(clients, cells, bits, colluding=0.05, dropping=0.2 if clients < 20 else 0.1)
    found = Round(terms, drops).play()
    assert found.check()
    left = [sum(phase > at for phase in drops.values()) for at in range(5)]
    left = [clients - len(drops) + more for more in left]
    degree = terms.parameters(left[0]).degree
    names = ("advertised", "shared", "masked", "agreed", "revealed")
    counted = protocol_bytes(
        clients, degree, cells, bits, terms.totals, **dict(zip(names, left, strict=True))
    )
    for at, phase in enumerate(PHASES):
        for way in ("down", "up"):
            sent = sum(len(m) for p, w, _, m in found.sent if (p, w) == (at, way))
            assert getattr(counted[phase], way) == sent, (phase, way)


def test_without_dropouts_all_answer():
    counted = protocol_bytes(9, 8, 1000, 6)
    assert counted["mask"].up == 9 * (28 + 64 + 8 + 16 * 6 * 8 + 64)
    assert list(counted) == list(PHASES)
