"""`fetchsgd privacy`: the noise that an epsilon asks for, or the epsilon that a noise promises."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, get_args

import typer

from fetchsgd.cli.output import say
from fetchsgd.errors import UserError
from fetchsgd.privacy import (
    Accountant,
    DistributedNoise,
    Gaussian,
    Participation,
    distributed_noise_for,
    noise_for,
)
from fetchsgd.privacy.accounting import By, How
from fetchsgd.privacy.settings import Mechanism
from fetchsgd.privacy.tables import Kind

WHO = {
    "poisson": "each takes part in a round by a coin of its own, with probability {chance:.4g}, "
    "and nobody sees who did",
    "epoch": "each takes part once in an epoch, {times:,} times in all, and nothing is gained by "
    "the order",
    "uniform": "{per_round:,} are drawn anew for each round, and nobody sees which",
}
KNOWN = (
    "each takes part up to {times:,} times, and the server sees when, so nothing is gained by "
    "sampling"
)


def privacy(
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")],
    clients: Annotated[int, typer.Option(help="All clients that may take part.")],
    per_round: Annotated[int, typer.Option(help="Clients of a round, on average.")],
    epsilon: Annotated[float | None, typer.Option(help="What the run may spend.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="Its deviation over the clip, instead of an epsilon.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The probability beside epsilon.")] = 1e-5,
    sampling: Annotated[str, typer.Option(metavar="poisson|epoch|uniform")] = "poisson",
    mechanism: Annotated[
        str, typer.Option(metavar="gaussian|discrete_gaussian|skellam")
    ] = "gaussian",
    clip: Annotated[float, typer.Option(help="Of messages; for noise in whole levels.")] = 1.0,
    step: Annotated[float, typer.Option(help="Of a level; for noise in whole levels.")] = 0.0,
    count: Annotated[int, typer.Option(help="Levels of a message; for noise in them.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which noise an epsilon asks for, or what a noise promises, and what that assumes."""
    if (epsilon is None) == (noise is None):
        raise UserError("give --epsilon for the noise it asks for, or --noise for its epsilon")
    _check(rounds, epsilon, noise, delta, sampling, mechanism)
    is_central = mechanism == "gaussian"
    if (step > 0, count > 0) != (not is_central, not is_central):
        raise UserError("--step and --count belong to noise in whole levels, which needs both")
    try:
        who = Participation(_how(sampling), clients, per_round, sampled=is_central)
        if is_central:
            answer = _central(epsilon, noise, delta, who, rounds)
        else:
            kind: Kind = "skellam" if mechanism == "skellam" else "discrete_gaussian"
            own = DistributedNoise(kind, noise or 1.0, clip, step, count, per_round)
            answer = _distributed(epsilon, delta, who, rounds, own)
    except ValueError as error:
        raise UserError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    _show(answer, who, rounds)


def _check(
    rounds: int,
    epsilon: float | None,
    noise: float | None,
    delta: float,
    sampling: str,
    mechanism: str,
) -> None:
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {rounds}")
    for name, value in (("epsilon", epsilon), ("noise", noise)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name} must be a number above 0, got {value}")
    if not 0 < delta < 1:
        raise UserError(f"--delta must be between 0 and 1, got {delta}")
    for option, given, known in (
        ("sampling", sampling, get_args(How)),
        ("mechanism", mechanism, get_args(Mechanism)),
    ):
        if given not in known:
            raise UserError(f"--{option} must be one of {', '.join(known)}, got {given!r}")


def _how(sampling: str) -> How:
    return "poisson" if sampling == "poisson" else "epoch" if sampling == "epoch" else "uniform"


def _central(
    epsilon: float | None, noise: float | None, delta: float, who: Participation, rounds: int
) -> dict[str, Any]:
    by: tuple[By, ...] = ("pld", "rdp")
    chosen = noise or noise_for(epsilon or 0.0, delta, who, rounds)
    spent = {name: Accountant(Gaussian(chosen), who, name).epsilon(rounds, delta) for name in by}
    return {
        "noise": chosen,
        "epsilon": spent["pld"],
        "epsilon_rdp": spent["rdp"],
        "delta": delta,
        "deviation_of_the_mean": chosen / who.per_round,
    }


def _distributed(
    epsilon: float | None, delta: float, who: Participation, rounds: int, own: DistributedNoise
) -> dict[str, Any]:
    if epsilon is not None:
        own = distributed_noise_for(epsilon, delta, who, rounds, own)
    return {
        "noise": own.noise,
        "epsilon": Accountant(own.curve, who, "rdp").epsilon(rounds, delta),
        "delta": delta,
        "longest_in_levels": math.sqrt(own.squares),
        "variance_of_a_client": float(own.of_a_client.variance),
    }


def _show(answer: dict[str, Any], who: Participation, rounds: int) -> None:
    told = {"chance": who.chance, "times": who.times(rounds), "per_round": who.per_round}
    is_central = "deviation_of_the_mean" in answer
    say(
        f"noise {answer['noise']:.4g} (privacy.noise) promises epsilon {answer['epsilon']:.4g} at "
        f"delta {answer['delta']:g}"
    )
    if is_central:
        say(
            f"the mean of {who.per_round:,} messages gets a deviation of "
            f"{answer['deviation_of_the_mean']:.4g} times the clip in every number"
        )
        say(f"by Rényi divergences alone it would be epsilon {answer['epsilon_rdp']:.4g}")
    else:
        say(
            f"a client's levels are at most {answer['longest_in_levels']:.4g} long, and it adds "
            f"noise of variance {answer['variance_of_a_client']:.4g} to each"
        )
    say("this assumes:")
    say("- two runs are neighbours if one client sends nothing but zeros in one of them")
    takes_part = (WHO[who.how] if who.sampled else KNOWN).format(**told)
    say(f"- {rounds:,} rounds and {who.clients:,} clients: {takes_part}")
    if is_central:
        say("- the server is honest: it clips, adds the noise, and shows nothing but what follows")
    else:
        say(f"- at least {who.per_round:,} honest clients are in every sum, and only sums show")
