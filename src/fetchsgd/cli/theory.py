"""`fetchsgd theory`: the sketch and the step that the paper's theorems ask for, and the reverse."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from fetchsgd.cli.output import console, say
from fetchsgd.errors import UserError
from fetchsgd.formatting import format_bytes
from fetchsgd.theory import (
    Certainty,
    Convergence,
    Heaviness,
    Problem,
    Promise,
    Requirement,
    promise,
    requirements,
    theorem_1,
    theorem_2,
    windows,
)

DEFAULT_MOMENTUM = 0.9  # the paper's
UNIT = Problem(smoothness=1.0, gradient_norm=1.0, gap=0.0)


@dataclass(frozen=True)
class Question:
    """What was asked, checked."""

    theorem: int
    dim: int
    rounds: int
    delta: float
    tau: float | None
    window: int
    momentum: float
    bits: int
    k: int
    shape: tuple[int, int] | None
    problem: Problem | None

    @property
    def kept(self) -> int:
        """Tables of the server: of momentum and error, or of the window."""
        return self.window if self.theorem == 2 else 2 if self.momentum else 1

    def convergence(self, problem: Problem, cols: int | None = None) -> Convergence:
        assert self.tau is not None
        if self.theorem == 1:
            return theorem_1(problem, self.tau, self.rounds, self.momentum)
        return theorem_2(problem, self.tau, self.rounds, self.window, cols=cols)


def theory(
    dim: Annotated[int, typer.Option(help="Weights of the model.")],
    rounds: Annotated[int, typer.Option(help="Rounds of training (T).")],
    tau: Annotated[
        float | None, typer.Option(help="How heavy the heavy coordinates are, below 1.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="The probability with which the sketch may fail.")
    ] = 0.01,
    theorem: Annotated[
        int, typer.Option(help="1: heavy in every round; 2: in a sliding window.")
    ] = 1,
    window: Annotated[
        int | None,
        typer.Option(help="Rounds of the sliding window (I of Theorem 2); 1 unless set."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="With --cols: tell what this table promises.")
    ] = None,
    cols: Annotated[
        int | None, typer.Option(help="With --rows: tell what this table promises.")
    ] = None,
    k: Annotated[int, typer.Option(help="Coordinates that change per round.")] = 1,
    bits: Annotated[int, typer.Option(help="Bits of a cell that a client sends.")] = 32,
    momentum: Annotated[
        float | None, typer.Option(help="rho; 0.9 unless set, and 0 in Theorem 2.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="L of the loss.")] = None,
    gradient_norm: Annotated[
        float | None, typer.Option(help="G: no stochastic gradient is longer.")
    ] = None,
    gap: Annotated[float | None, typer.Option(help="f(w0) - f*.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the sketch and step that the paper's theorems ask for, or what a table promises."""
    try:
        shape = _shape(rows, cols, tau)
        problem = _problem(smoothness, gradient_norm, gap, shape)
        own = _own_momentum(theorem, momentum)
        question = Question(
            theorem, dim, rounds, delta, tau, _own_window(theorem, window, rounds), own,
            bits, k, shape, problem,
        )  # fmt: skip
        answer = _answer(question)
    except ValueError as error:
        raise UserError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_plain(question, *answer), indent=2))
    else:
        _show(question, *answer)


def _shape(rows: int | None, cols: int | None, tau: float | None) -> tuple[int, int] | None:
    if (rows is None) != (cols is None):
        raise UserError("--rows and --cols belong together: a table has both")
    if rows is not None and cols is not None:
        return rows, cols
    if tau is None:
        raise UserError("give --tau for a table, or --rows and --cols for what they promise")
    return None


def _problem(
    smoothness: float | None,
    gradient_norm: float | None,
    gap: float | None,
    shape: tuple[int, int] | None,
) -> Problem | None:
    if smoothness is None and gradient_norm is None and gap is None:
        return None
    if smoothness is None or gradient_norm is None or gap is None:
        raise UserError("a bound needs --smoothness, --gradient-norm and --gap together")
    if shape is not None:
        raise UserError("a bound is for the table that --tau asks for: leave out --rows and --cols")
    return Problem(smoothness, gradient_norm, gap)


def _own_momentum(theorem: int, momentum: float | None) -> float:
    if theorem == 2 and momentum:
        raise UserError(f"--momentum must be 0 in Theorem 2, got {momentum}")
    if momentum is None:
        return 0.0 if theorem == 2 else DEFAULT_MOMENTUM
    if not 0 <= momentum < 1:
        raise UserError(f"--momentum must be at least 0 and below 1, got {momentum}")
    return momentum


def _own_window(theorem: int, window: int | None, rounds: int) -> int:
    if theorem == 1 and window is not None:
        raise UserError("--window belongs to Theorem 2: add --theorem 2, or leave it out")
    if window is not None and not 1 <= window <= rounds:
        raise UserError(f"--window must be from 1 to {rounds}, the rounds, got {window}")
    return window or 1


Answer = tuple[tuple[Requirement, ...], Promise | None, Convergence | None]


def _answer(asked: Question) -> Answer:
    certainty = Certainty(asked.dim, asked.rounds, asked.delta, asked.window)
    if not 1 <= asked.k <= asked.dim:
        raise UserError(f"--k must be from 1 to {asked.dim}, the weights, got {asked.k}")
    if asked.shape is not None:
        rows, cols = asked.shape
        given = promise(rows, cols, certainty, asked.theorem, asked.kept, asked.bits, asked.tau)
        return (), given, None
    assert asked.tau is not None
    heaviness = Heaviness(asked.theorem, asked.tau)
    needed = requirements(heaviness, certainty, asked.kept, asked.bits, asked.k)
    if asked.problem is None:
        return needed, None, None
    return needed, None, asked.convergence(asked.problem, needed[0].table.cols)


def _plain(
    asked: Question,
    needed: tuple[Requirement, ...],
    given: Promise | None,
    found: Convergence | None,
) -> dict[str, Any]:
    """All that is known, by name."""
    plain = asdict(asked)
    del plain["shape"]
    if asked.theorem == 2:
        plain["windows"] = asdict(windows(asked.window))
    if needed:
        plain["requirements"] = [asdict(each) for each in needed]
    if given is not None:
        plain["promise"] = asdict(given)
    if asked.tau is not None:
        size, unit = _step(asked)
        plain["step"] = {"size": size, "unit": unit}
    if found is not None:
        plain["convergence"] = asdict(found)
    return plain


def _step(asked: Question) -> tuple[float, str]:
    """eta, or how many times 1 / L or 1 / (G sqrt(L)) where these are not known."""
    size = asked.convergence(asked.problem or UNIT).step
    return size, "" if asked.problem else "1 / L" if asked.theorem == 1 else "1 / (G √L)"


def _show(
    asked: Question,
    needed: tuple[Requirement, ...],
    given: Promise | None,
    found: Convergence | None,
) -> None:
    say(
        f"Theorem {asked.theorem}: {asked.dim:,} weights, {asked.rounds:,} rounds, "
        f"all of them well with probability {1 - asked.delta:.6g}"
    )
    if asked.tau is not None:
        say(f"heavy: {_heavy(asked.theorem, asked.tau)}{_in_window(asked)}")
    console.print()
    if given is None:
        console.print(_table_of_requirements(needed))
        server_bytes = needed[0].costs.server_bytes
    else:
        _show_promise(asked, given)
        server_bytes = given.costs.server_bytes
    console.print()
    for line in _lines(asked, server_bytes, found):
        say(line)
    say("all for line 14 of Algorithm 1 as printed: method.error_reset = 'subtract'")


def _heavy(theorem: int, tau: float) -> str:
    """Assumption 1, or Definition 1."""
    return f"q_i² ≥ {tau:.3g} |q|²" if theorem == 1 else f"|q_i| > {tau:.3g} |q|"


def _in_window(asked: Question) -> str:
    if asked.theorem == 1:
        return " for some coordinate, in every round"
    return f" for all signal, within {asked.window:,} round{'s' * (asked.window > 1)}"


def _table_of_requirements(needed: tuple[Requirement, ...]) -> Table:
    table = Table("what it is for", box=None)
    for name in ("off by", "rows x cols", "cells", "upload", "smaller"):
        table.add_column(name, justify="right")
    for each in needed:
        size, cost = each.table, each.costs
        table.add_row(
            each.what, f"{size.error:.3g}", f"{size.rows:,} x {size.cols:,}", f"{size.cells:,}",
            format_bytes(cost.upload_bytes), f"{cost.compression:.3g}x",
        )  # fmt: skip
    return table


def _show_promise(asked: Question, given: Promise) -> None:
    table, cost = given.table, given.costs
    say(
        f"{table.rows:,} x {table.cols:,} cells: {format_bytes(cost.upload_bytes)} up, "
        f"{cost.compression:.3g}x smaller"
    )
    if given.finds is None:
        say("this promises no tau below 1" + "; try more rows" * (table.rows < 5))
    else:
        heavy = _heavy(asked.theorem, given.finds.tau)
        say(f"it finds all coordinates with {heavy}: estimates are off by < {table.error:.3g} |q|")
    if given.asked is not None:
        failure = given.asked.failure
        chance = f"probability {failure:.3g} at most" if failure < 1 else "a probability up to 1"
        say(f"at tau = {asked.tau:.3g} it fails with {chance}")


def _lines(asked: Question, server_bytes: int, found: Convergence | None) -> list[str]:
    """What the server keeps, the step, the bounds."""
    tables = f"{asked.kept:,} table" + "s" * (asked.kept > 1)
    lines = [f"the server keeps {tables}: {format_bytes(server_bytes)}"]
    if asked.window > 1:
        pruned = windows(asked.window).pruned
        told = format_bytes(server_bytes * pruned / asked.kept)
        lines[0] += f"; pruned, at most {pruned:,}: {told}"
    if asked.tau is None:
        return lines
    size, unit = _step(asked)
    formula = "(1 - rho) / (2 L √T)" if asked.theorem == 1 else "1 / (G √L T^(2/3))"
    momentum = f"rho = {asked.momentum:g}" if asked.theorem == 1 else "no momentum"
    lines.append(f"step: {formula} = {size:.3g}{unit.replace('1', '', 1)}, {momentum}")
    if found is not None:
        which = " and the table for top-k" if asked.theorem == 1 else ""
        lines += [
            f"least E |∇f|²: {found.printed:.3g} as printed, "
            f"{found.derived:.3g} with every factor kept{which}",
            f"the printed first term is the largest from {found.leading_from:,} rounds",
        ]
    return lines
