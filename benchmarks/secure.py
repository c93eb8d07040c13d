"""What secure aggregation costs: time of clients and server by phase, and bytes.

    python benchmarks/secure.py --out benchmarks/results/secure-cpu.json
    python benchmarks/secure.py --clients 10 100 --cells 100000      # seconds

Clients and server are the real state machines, all in this process, one after another, on one
thread. One client in twenty drops out after it has shared its secrets, which costs the server the
most. Every sum is compared with the true one. A vector is made when its client masks, and added to
the server's sum before the next one is made: 1,000 vectors of 10 million cells are never in memory
together. They take minutes, as the clients work one after another.

Seconds are by the clock, and verdicts too. Beside them stand seconds of the processor, which say
more where others are at work on the machine, and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measure import environment

from fetchsgd.secure import Client, ClientState, Phase, Server, Terms, make_terms, protocol_bytes

Result = TypeVar("Result")
BITS = 8
COLLUDING, DROPPING = 0.05, 0.05
NEIGHBOURS, MASK_LIMIT, SERVER_LIMIT = 40, 0.060, 20.0


class Spent(NamedTuple):
    """Seconds by the clock, and of the processor."""

    clock: float
    processor: float

    def plus(self, other: Spent) -> Spent:
        return Spent(self.clock + other.clock, self.processor + other.processor)


def timed(function: Callable[..., Result], *given: Any) -> tuple[Result, Spent]:
    start, busy = time.perf_counter(), time.process_time()
    found = function(*given)
    return found, Spent(time.perf_counter() - start, time.process_time() - busy)


def new_clients(count: int) -> tuple[dict[int, Client], dict[int, bytes]]:
    keys = {number: Ed25519PrivateKey.generate() for number in range(count)}
    directory = {number: key.public_key().public_bytes_raw() for number, key in keys.items()}
    return {number: Client(number, key, directory) for number, key in keys.items()}, directory


def vector(terms: Terms, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    cells = rng.integers(0, 1 << terms.bits, terms.cells, dtype=np.uint32)
    return cells, np.array([number], dtype=np.uint64)


class Measured:
    """A round, with the time of each part."""

    def __init__(self, terms: Terms, dropouts: set[int]) -> None:
        self.terms, self.dropouts = terms, dropouts
        self.clients, directory = new_clients(len(terms.cohort))
        self.server = Server(terms, directory)
        self.states: dict[int, ClientState] = {}
        self.sum = np.zeros(terms.cells, dtype=np.uint32)
        self.phases: dict[str, dict[str, float]] = {}

    def answer(self, phase: Phase, number: int, message: bytes) -> tuple[bytes, Spent]:
        client = self.clients[number]
        if phase is Phase.ADVERTISE:
            (state, answer), spent = timed(client.join, message)
        else:
            more = vector(self.terms, number) if phase is Phase.MASK else ()
            if more:
                self.sum += more[0]
            function = getattr(client, phase.name.lower())
            (state, answer), spent = timed(function, self.states[number], message, *more)
        self.states[number] = state
        return answer, spent

    def play(self, until: Phase = Phase.DONE) -> dict[int, bytes]:
        messages = self.server.invitations()
        while (phase := self.server.phase) < until:
            clients, server, up = [], Spent(0.0, 0.0), 0
            down = sum(map(len, messages.values()))
            for number, message in messages.items():
                if phase is Phase.MASK and number in self.dropouts:
                    continue
                answer, spent = self.answer(phase, number, message)
                clients.append(spent)
                server = server.plus(timed(self.server.receive, answer)[1])
                up += len(answer)
            messages, closing = timed(self.server.close)
            server = server.plus(closing)
            self.phases[phase.name.lower()] = {
                "client_s": statistics.median(spent.clock for spent in clients),
                "client_processor_s": statistics.median(spent.processor for spent in clients),
                "server_s": server.clock, "server_processor_s": server.processor,
                "up": up, "down": down,
            }  # fmt: skip
        return messages

    def check(self) -> None:
        found = self.server.result
        assert found is not None
        assert np.array_equal(found.cells, self.sum % (1 << self.terms.bits))
        assert int(found.totals[0]) == sum(found.clients)


def round_row(clients: int, cells: int) -> dict[str, Any]:
    terms = make_terms(
        b"a benchmark's id", 1, tuple(range(clients)), cells, BITS,
        colluding=COLLUDING, dropping=DROPPING,
    )  # fmt: skip
    found = terms.parameters(clients)
    dropouts = set(range(0, clients, 20)) if clients - found.least else set()
    measured = Measured(terms, dropouts)
    measured.play()
    measured.check()
    counted = protocol_bytes(clients, found.degree, cells, BITS, masked=clients - len(dropouts))
    for phase, bytes in counted.items():
        assert (bytes.up, bytes.down) == (
            measured.phases[phase]["up"], measured.phases[phase]["down"]
        )  # fmt: skip
    return {
        "clients": clients, "cells": cells, "bits": BITS, "degree": found.degree,
        "threshold": found.threshold, "dropouts": len(dropouts), "phases": measured.phases,
        **{
            f"{who}_{what}": sum(phase[f"{who}_{what}"] for phase in measured.phases.values())
            for who in ("server", "client")
            for what in ("s", "processor_s")
        },
        "load": os.getloadavg()[0], "most_memory_mb": most_memory(),
    }  # fmt: skip


def most_memory() -> int:
    """Of this process so far, in MB: it grows from row to row."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def mask_row(bits: int, cells: int = 10**6, repeats: int = 7) -> dict[str, Any]:
    """The whole answer of the phase `mask` of a client with 40 neighbours: keys to signature."""
    terms = make_terms(
        b"a benchmark's id", 1, tuple(range(NEIGHBOURS + 1)), cells, bits,
        colluding=0.34, dropping=0.31,
    )  # fmt: skip
    assert terms.parameters(NEIGHBOURS + 1).degree == NEIGHBOURS
    measured = Measured(terms, set())
    message = measured.play(until=Phase.MASK)[0]
    before, given = measured.states[0], vector(terms, 0)
    client = measured.clients[0]
    client.mask(before, message, *given)
    seconds, busy = [], []
    for _ in range(repeats):
        spent = timed(client.mask, before, message, *given)[1]
        seconds.append(spent.clock)
        busy.append(spent.processor)
    return {
        "bits": bits, "cells": cells, "neighbours": NEIGHBOURS,
        "seconds": statistics.median(seconds), "least": min(seconds),
        "processor_s": statistics.median(busy), "load": os.getloadavg()[0],
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    print(
        f"\n{row['clients']:,} clients, {row['cells']:,} cells of {row['bits']} bits, degree"
        f" {row['degree']}, threshold {row['threshold']}, {row['dropouts']} dropouts:"
        f" server {row['server_s']:.2f} s ({row['server_processor_s']:.2f} s of the processor),"
        f" a client {1e3 * row['client_s']:.0f} ms ({1e3 * row['client_processor_s']:.0f}),"
        f" at most {row['most_memory_mb']:,} MB of memory, load {row['load']:.1f}"
    )
    for name, phase in row["phases"].items():
        up, down = phase["up"] / row["clients"], phase["down"] / row["clients"]
        print(
            f"  {name:10} client {1e3 * phase['client_processor_s']:8.2f} ms   server"
            f" {phase['server_processor_s']:7.3f} s of the processor   bytes a client:"
            f" up {up:12,.0f}  down {down:9,.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--cells", type=int, nargs="*", default=[10**5, 10**6, 10**7])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    masks = [mask_row(bits) for bits in (8, 16, 32)]
    for row in masks:
        verdict = "met" if row["seconds"] < MASK_LIMIT else "MISSED"
        print(
            f"mask {row['cells']:,} cells of {row['bits']} bits, {NEIGHBOURS} neighbours:"
            f" {1e3 * row['seconds']:.1f} ms (target {1e3 * MASK_LIMIT:.0f} ms: {verdict}),"
            f" {1e3 * row['processor_s']:.1f} ms of the processor at a load of {row['load']:.1f}"
        )
    rows = []
    for clients in given.clients:
        for cells in given.cells:
            rows.append(round_row(clients, cells))
            show(rows[-1])
    for row in rows:
        if (row["clients"], row["cells"]) == (1000, 10**6):
            verdict = "met" if row["server_s"] < SERVER_LIMIT else "MISSED"
            print(f"\nserver: {row['server_s']:.1f} s (target {SERVER_LIMIT:.0f} s: {verdict})")
    if given.out is not None:
        content = {"about": environment("cpu"), "masks": masks, "rounds": rows}
        given.out.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nwritten to {given.out}")


if __name__ == "__main__":
    main()
