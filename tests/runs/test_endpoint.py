"""What a run says to Prometheus, read over HTTP by Prometheus' own parser."""

import socket
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client", reason="pip install 'fetchsgd[metrics]'")

from prometheus_client.parser import text_string_to_metric_families

from fetchsgd.errors import UserError
from fetchsgd.flower.events import Events
from fetchsgd.runs.endpoint import HOST, Newest, served
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def read(port):
    """Values by name and label."""
    with urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_simulated_run_while_it_trains():
    port, newest, seen = free_port(), Newest("accuracy"), []
    run = Run(resolve({"task": {"name": "tinytask:tiny"}}))
    with served(port) as endpoint:
        endpoint.sources.append(newest.numbers)
        assert read(port) == {}  # nothing has happened

        def watch(progress):
            newest(progress)
            if progress.round in (5, 9):
                seen.append(read(port))

        run.complete(watch=watch)
    early, late = seen
    assert (early["fetchsgd_rounds_total",], late["fetchsgd_rounds_total",]) == (5, 9)
    assert late["fetchsgd_planned_rounds",] == 9
    assert 0 < late["fetchsgd_loss",] < early["fetchsgd_loss",]
    assert 0 < early["fetchsgd_quality", "accuracy"] <= 1
    for way in ("up", "down"):
        assert 0 < early["fetchsgd_wire_bytes_total", way] < late["fetchsgd_wire_bytes_total", way]
    for phase in ("clients", "server", "recording"):
        assert late["fetchsgd_phase_seconds_total", phase] > 0
    with pytest.raises(OSError, match="refused"):
        read(port)


def test_events_of_a_federation():
    events = Events()
    events.count("replies", 7)
    events.count("received_bytes", 1000)
    events.reject(3, "norm")
    events.reject(3, "norm")
    events.reject(1, "header")
    port = free_port()
    with served(port) as endpoint:
        endpoint.sources.append(events.numbers)
        found = read(port)
        assert found["fetchsgd_replies_total",] == 7
        assert found["fetchsgd_rejections_total", "norm"] == 2
        assert found["fetchsgd_rejections_total", "seed"] == 0
        assert found["fetchsgd_client_rejections_total", "3"] == 2
        assert found["fetchsgd_payload_bytes_total", "up"] == 1000
        events.count("late")
        assert read(port)["fetchsgd_events_total", "late"] == 1  # as it is now


def test_off_and_out_of_reach():
    with served(0) as endpoint:
        assert endpoint is None
    with pytest.raises(UserError, match="from 1 to 65535"), served(70_000):
        pass
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on {HOST}:{port}"), served(port):
            pass


def test_nobody_else_on_the_network_reaches_it():
    port = free_port()
    with served(port), socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: the endpoint has 127.0.0.1 alone
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.3", port)):
            pass
