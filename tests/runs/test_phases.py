"""Where the time goes: phases within phases, over rounds, and after a resume."""

import time

import pytest

from fetchsgd.runs.phases import NAMES, Phases


def spend(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_every_second_is_counted_once():
    phases = Phases()
    began = time.perf_counter()

    def rounds():
        for _ in range(2):
            phases.timed("clients", clients)()
            spend(0.02)
            yield "a round"

    def clients():
        spend(0.01)
        phases.timed("waiting", spend)(0.03)

    for found in phases.rounds(rounds()):
        assert found == "a round"
        spend(0.04)
    took = time.perf_counter() - began
    least = {"waiting": 0.06, "clients": 0.02, "server": 0.04, "recording": 0.08}
    for name in NAMES:
        assert phases.seconds[name] >= least[name]
    assert sum(phases.seconds.values()) <= took
    assert sum(phases.seconds.values()) > 0.95 * took


def test_a_phase_that_fails_counts_and_the_next_server_goes_on_from_a_line():
    phases = Phases()

    def fail():
        spend(0.02)
        raise ValueError("no reply")

    with pytest.raises(ValueError, match="no reply"):
        phases.timed("clients", fail)()
    line = phases.line()
    assert list(line) == ["seconds/clients"]
    assert line["seconds/clients"] >= 0.02
    assert Phases({"round": 3, **line}).seconds == phases.seconds
    assert (
        str(Phases({"seconds/waiting": 8.06, "seconds/clients": 120}))
        == "waiting 8.06 s, clients 2 min"
    )
