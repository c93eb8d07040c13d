"""What a run says to Prometheus: its newest numbers over HTTP, on this machine alone.

    fetchsgd train digits --metrics-port 9464          http://127.0.0.1:9464/metrics
    federation.metrics_port = 9464                     the same for a federation's server

It is off unless a port is given, and bound to loopback: whoever wants it elsewhere puts a proxy in
front. Numbers are read when they are asked for, so those of a round that is open are there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fetchsgd.errors import UserError, from_os
from fetchsgd.extras import how_to_install

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from fetchsgd.runs.recorder import Progress

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Numbers:
    """Numbers of a kind. Counters only grow; `label` names what tells them apart, if anything."""

    name: str
    help: str
    values: Mapping[str, float]
    label: str = ""
    counter: bool = True


# Called for every request, from another thread.
Source = Callable[[], Iterable[Numbers]]


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Everything that is shown; parts of a run add what they know."""

    sources: list[Source] = field(default_factory=list)

    def describe(self) -> list[Metric]:
        """Nothing: names depend on the run, and nobody is asked before it begins."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        for numbers in (found for source in self.sources for found in source()):
            kind = CounterMetricFamily if numbers.counter else GaugeMetricFamily
            labels = [numbers.label] if numbers.label else []
            family = kind(f"fetchsgd_{numbers.name}", numbers.help, labels=labels)
            for name, value in numbers.values.items():
                family.add_metric([name] if labels else [], value)
            yield family


@contextmanager
def served(port: int) -> Iterator[Endpoint | None]:
    """An endpoint on this port for as long as this lasts; None for port 0."""
    if port == 0:
        yield None
        return
    if not 0 < port < 1 << 16:
        raise UserError(f"a port for Prometheus must be from 1 to 65535, or 0 for none, got {port}")
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        raise UserError(f"an endpoint for Prometheus: {how_to_install(error.name)}") from error
    endpoint, registry = Endpoint(), CollectorRegistry()
    registry.register(endpoint)
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise from_os(f"cannot listen on {HOST}:{port} for Prometheus", error) from error
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Newest:
    """The newest progress of a run, as a recorder tells it."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.seen: Progress | None = None

    def __call__(self, seen: Progress) -> None:
        self.seen = seen

    def numbers(self) -> Iterator[Numbers]:
        seen = self.seen  # once: another thread replaces it
        if seen is None:
            return
        yield Numbers("rounds", "Rounds that are done.", {"": seen.round})
        yield Numbers(
            "planned_rounds", "Rounds of the whole run.", {"": seen.rounds}, counter=False
        )
        yield Numbers("loss", "Mean loss of the last clients.", {"": seen.loss}, counter=False)
        if seen.metric is not None:
            quality = {self.metric: seen.metric}
            told = "On the test set, when it was last evaluated."
            yield Numbers("quality", told, quality, "metric", counter=False)
        moved = {"up": float(seen.up), "down": float(seen.down)}
        yield Numbers("wire_bytes", "Bytes of all messages, as the ledger counts.", moved, "way")
        told = "Seconds of each phase (fetchsgd.runs.phases)."
        yield Numbers("phase_seconds", told, seen.phases, "phase")
