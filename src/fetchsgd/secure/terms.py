"""What a round of secure aggregation is: who takes part, in what sum, with which safety.

Everything that is signed or encrypted in the round is bound to the digest of its terms, so no
message fits into another round, another cohort, or the same round with other settings. Its context
may be a digest of all that vectors are computed from, such as the model: else a server could send
each client another one, and see to it that all vectors but one are nothing.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

from fetchsgd.errors import UserError
from fetchsgd.secure import planes
from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.parameters import Parameters, at_least, at_most, parameters, search

VERSION = 1
RUN_BYTES = 16
NO_CONTEXT = bytes(32)
_FIXED = struct.Struct("<16sIIQBBBBII32sI")
FIXED_BYTES = _FIXED.size
_MOST_CELLS = 1 << 40
_MOST_CLIENTS = 1 << 20


@dataclass(frozen=True)
class Terms:
    """Of one attempt at one round of one run."""

    run: bytes  # 16 bytes that name the run
    round: int
    attempt: int  # goes up when a round is tried again
    cohort: tuple[int, ...]  # client numbers, in increasing order
    cells: int  # of the vector that is summed modulo 2^bits
    bits: int
    totals: int  # numbers that are summed beside it, modulo 2^64
    colluding: int  # the most clients that may work with the server against the others
    least: int  # survivors, below which nothing is revealed
    security_bits: int
    failure_bits: int
    context: bytes = NO_CONTEXT  # digest of what vectors are computed from, the same for all

    def __post_init__(self) -> None:
        for name, (low, high) in _ranges(len(self.cohort)).items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"{name} is {value}; it must be from {low} to {high}")
        if len(self.run) != RUN_BYTES:
            raise UserError(f"run has {len(self.run)} bytes; it must have {RUN_BYTES}")
        if len(self.context) != len(NO_CONTEXT):
            raise UserError(
                f"context has {len(self.context)} bytes; it must have {len(NO_CONTEXT)}"
            )
        if not 2 <= len(self.cohort) <= _MOST_CLIENTS:
            raise UserError(f"a cohort of {len(self.cohort)} clients has no secrets: it needs two")
        inside = all(0 <= number < 1 << 32 for number in self.cohort)
        if not inside or any(a >= b for a, b in zip(self.cohort, self.cohort[1:], strict=False)):
            raise UserError("the cohort must be distinct client numbers in increasing order")

    @cached_property
    def body(self) -> bytes:
        """The terms as bytes."""
        fixed = _FIXED.pack(
            self.run, self.round, self.attempt, self.cells, self.bits, self.totals,
            self.security_bits, self.failure_bits, self.colluding, self.least, self.context,
            len(self.cohort),
        )  # fmt: skip
        return fixed + struct.pack(f"<{len(self.cohort)}I", *self.cohort)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"fetchsgd secure terms" + bytes([VERSION]) + self.body).digest()

    @cached_property
    def cohort_set(self) -> frozenset[int]:
        return frozenset(self.cohort)

    @property
    def tag(self) -> bytes:
        """By which a message names its round."""
        return self.digest[:16]

    @property
    def place(self) -> tuple[int, int]:
        """Rounds and attempts only ever go up."""
        return self.round, self.attempt

    def parameters(self, advertised: int) -> Parameters:
        """Of the graph of those who have sent keys; server and clients each work them out."""
        if advertised < self.least:
            raise UserError(
                f"{advertised} of {len(self.cohort)} clients are there, but at least {self.least}"
                " must be"
            )
        return search(
            len(self.cohort), advertised, self.colluding, self.least,
            self.security_bits, self.failure_bits,
        )  # fmt: skip


def _ranges(clients: int) -> dict[str, tuple[int, int]]:
    return {
        "round": (0, (1 << 32) - 1),
        "attempt": (0, (1 << 32) - 1),
        "cells": (1, _MOST_CELLS),
        "bits": (planes.LEAST_BITS, planes.MOST_BITS),
        "totals": (0, 255),
        "colluding": (0, max(clients - 2, 0)),
        "least": (2, max(clients, 2)),
        "security_bits": (1, 255),
        "failure_bits": (1, 255),
    }


def make_terms(
    run: bytes,
    round: int,
    cohort: tuple[int, ...],
    cells: int,
    bits: int,
    *,
    colluding: float,
    dropping: float,
    totals: int = 1,
    attempt: int = 0,
    security_bits: int = 40,
    failure_bits: int = 20,
    context: bytes = NO_CONTEXT,
) -> Terms:
    """Terms whose colluding and dropping clients are fractions of the cohort."""
    found = parameters(len(cohort), colluding, dropping, security_bits, failure_bits)
    return Terms(
        run, round, attempt, tuple(sorted(cohort)), cells, bits, totals,
        found.colluding, found.least, security_bits, failure_bits, context,
    )  # fmt: skip


def read_terms(body: bytes) -> Terms:
    """The terms that these bytes say, and no others."""
    if len(body) < _FIXED.size:
        raise RefusedError(f"an invitation of {len(body)} bytes is cut off")
    run, round, attempt, cells, bits, totals, security, failure, *counts = _FIXED.unpack_from(body)
    colluding, least, context, count = counts
    if len(body) != _FIXED.size + 4 * count:
        raise RefusedError(f"an invitation of {len(body)} bytes cannot name {count} clients")
    cohort = struct.unpack_from(f"<{count}I", body, _FIXED.size)
    try:
        return Terms(
            run, round, attempt, cohort, cells, bits, totals, colluding, least, security, failure,
            context,
        )  # fmt: skip
    except UserError as error:
        raise RefusedError(f"the terms make no sense: {error}") from error


@dataclass(frozen=True)
class Policy:
    """The least that a client insists on, whatever the server would like."""

    clients: int = 2  # in a cohort
    colluding: float = 0.0
    dropping: float = 0.5
    security_bits: int = 40
    group: int = 2  # honest clients in any sum that a dishonest server could learn

    def check(self, terms: Terms) -> None:
        count = len(terms.cohort)
        if count < self.clients:
            raise RefusedError(f"a cohort of {count} is smaller than {self.clients} clients")
        if terms.security_bits < self.security_bits:
            raise RefusedError(
                f"{terms.security_bits} bits of security are fewer than {self.security_bits}"
            )
        if terms.colluding < at_least(self.colluding * count):
            raise RefusedError(
                f"the terms allow for {terms.colluding} colluding clients of {count}, which is"
                f" less than a fraction of {self.colluding}"
            )
        if terms.least < count - at_most(self.dropping * count):
            raise RefusedError(
                f"the terms reveal sums of {terms.least} clients of {count}, which is more"
                f" dropping out than a fraction of {self.dropping}"
            )
        if 2 * terms.least <= count + terms.colluding:
            raise RefusedError(
                f"sums of {terms.least} of {count} clients, {terms.colluding} of whom may collude,"
                " could be two sums of one round, each of other clients"
            )

    def check_graph(self, found: Parameters) -> None:
        if found.group < self.group:
            raise RefusedError(
                f"in this graph a dishonest server could learn sums of {found.group} clients, which"
                f" are fewer than {self.group}"
            )
