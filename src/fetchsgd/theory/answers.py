"""Tables for all that a theorem's proof asks for, and what a given table promises, with bytes."""

from __future__ import annotations

from dataclasses import dataclass

from fetchsgd.theory.contraction import contracting
from fetchsgd.theory.costs import Costs, costs
from fetchsgd.theory.tables import (
    Certainty,
    Heaviness,
    TableSize,
    hoeffding_table,
    norm_table,
    promised,
    risk,
    smallest_table,
)


@dataclass(frozen=True)
class Requirement:
    """One thing that the proof needs, and a table that has it with probability 1 - delta."""

    what: str
    table: TableSize
    costs: Costs


@dataclass(frozen=True)
class Promise:
    """What a given table finds, and with which chance it fails at a tau that was asked for."""

    table: TableSize
    finds: Heaviness | None
    asked: TableSize | None
    costs: Costs


def requirements(
    heaviness: Heaviness, certainty: Certainty, kept: int, bits: int = 32, k: int = 1
) -> tuple[Requirement, ...]:
    """The first is the theorem's own; of norms and contraction only Theorem 1 speaks."""
    tau = heaviness.tau
    tables = {
        "find every heavy coordinate": smallest_table(heaviness.error, certainty),
        "the same, by Hoeffding": hoeffding_table(heaviness.error, certainty),
    }
    if heaviness.theorem == 1:
        error = contracting(tau, k).error
        tables[f"top-{k:,} removes tau/2 of |q|²"] = smallest_table(error, certainty)
        tables["norms within 1 ± tau"] = norm_table(tau, certainty)
    return tuple(
        Requirement(what, table, costs(table, certainty.dim, kept, bits))
        for what, table in tables.items()
    )


def promise(
    rows: int,
    cols: int,
    certainty: Certainty,
    theorem: int,
    kept: int,
    bits: int = 32,
    tau: float | None = None,
) -> Promise:
    """The reverse: from a table to the least tau, and to the chance of failure at a given tau."""
    table = promised(rows, cols, certainty)
    asked = None
    if tau is not None:
        asked = risk(rows, cols, Heaviness(theorem, tau).error, certainty)
    finds = Heaviness.found_with(theorem, table.error)
    return Promise(table, finds, asked, costs(table, certainty.dim, kept, bits))
