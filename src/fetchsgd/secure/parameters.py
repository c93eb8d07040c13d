"""How many neighbours, and how many of them must answer: Bell et al. 2020, section 3, in numbers.

Clients stand in a ring in random order, each beside `degree` / 2 neighbours on either side. To the
colluding and to the dropping clients, who do not choose the order, the neighbours of a client are a
sample without replacement, so what can go wrong has a hypergeometric tail. It is added up over
clients.

    exposed       a client with so many colluding neighbours c that 2 threshold <= degree + c: they
                  and two halves of the honest ones could give both its secrets to a server that
                  tells each half another story (an honest server would need c >= threshold)
    divided       degree / 2 clients in a row who collude or drop out: the honest survivors fall
                  apart, and the server learns the sum of each part
    unfinished    a client fewer than `threshold` of whose neighbours survive: the sum stays masked

The first two together happen with a probability of at most 2^-security_bits, the last of at most
2^-failure_bits, whoever colludes and drops out, if that is settled before the order is. Where all
are neighbours of all nothing is left to chance.

A dishonest server says how many have sent keys. It must not win by saying few: their graph has at
least the degree of the whole cohort's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from fetchsgd.errors import UserError
from fetchsgd.secure.shamir import MOST_HOLDERS


@dataclass(frozen=True)
class Parameters:
    """Of a round whose graph has `clients` clients."""

    clients: int
    degree: int
    threshold: int  # of a client's neighbours
    least: int  # survivors, below which nothing is revealed
    colluding: int  # the most that collude

    @property
    def complete(self) -> bool:
        """All are neighbours of all."""
        return self.degree == self.clients - 1

    @property
    def group(self) -> int:
        """The fewest honest clients in a sum that even a dishonest server can learn."""
        around = self.degree - self.threshold + 2
        return max(around, self.least - self.colluding) if self.complete else around


@dataclass(frozen=True)
class Risks:
    """Logarithms to base 2 of the probabilities."""

    exposed: float
    divided: float
    unfinished: float


def parameters(
    clients: int,
    colluding: float,
    dropping: float,
    security_bits: int = 40,
    failure_bits: int = 20,
    advertised: int | None = None,
) -> Parameters:
    """The smallest degree that will do, and the smallest threshold that goes with it.

    `colluding` and `dropping` are fractions of the cohort's `clients`, rounded up and down, of whom
    `advertised` have sent keys: those who have not are the first that dropped out.
    """
    for name, value in (("colluding", colluding), ("dropping", dropping)):
        if not 0 <= value < 1:
            raise UserError(f"{name} is {value}; it must be a fraction from 0 up to 1")
    here = clients if advertised is None else advertised
    least = max(2, clients - at_most(dropping * clients))
    if here < least:
        raise UserError(f"{here} of {clients} clients are there, but at least {least} must be")
    worst = at_least(colluding * clients)
    return search(clients, here, worst, least, security_bits, failure_bits)


@lru_cache(maxsize=256)
def search(
    cohort: int, clients: int, colluding: int, least: int, security: int, failure: int
) -> Parameters:
    """The same from numbers: `clients` of the cohort are there, `least` of them will survive."""
    whole = 0
    if clients < cohort:
        whole = search(cohort, cohort, colluding, least, security, failure).degree
    dropping = clients - least
    for degree in _degrees(clients):
        if degree < min(whole, clients - 1):
            continue
        bad = min(colluding + dropping, clients)
        if degree < clients - 1 and log_divided(clients, bad, degree) > -security - 1:
            continue
        threshold = _threshold(clients, colluding, degree, security)
        if threshold > degree:
            continue
        if log_unfinished(clients, dropping, degree, threshold) <= -failure:
            return Parameters(clients, degree, threshold, least, colluding)
    raise UserError(
        f"no threshold suits {clients} clients of whom {colluding} may collude and {dropping} drop"
        " out: colluding and twice dropping must stay below all, with room for chance, as a client"
        f" has at most {MOST_HOLDERS} neighbours; ask for fewer of either, or for fewer bits"
    )


def _threshold(clients: int, colluding: int, degree: int, security: int) -> int:
    """The smallest at which nobody is exposed; degree + 1 if there is none."""

    def is_safe(threshold: int) -> bool:
        return log_exposed(clients, colluding, degree, threshold) <= -security - 1

    thresholds = range(degree // 2 + 1, degree + 1)
    return thresholds.start + bisect_left(thresholds, True, key=is_safe)


def _degrees(clients: int) -> list[int]:
    """Even ones, and all neighbours of all."""
    sparse = list(range(2, min(clients - 1, MOST_HOLDERS + 1), 2))
    return [*sparse, clients - 1] if clients - 1 <= MOST_HOLDERS else sparse


def risks(found: Parameters) -> Risks:
    """How likely each mishap is, at most, with these parameters."""
    dropping = found.clients - found.least
    bad = min(found.colluding + dropping, found.clients)
    return Risks(
        log_exposed(found.clients, found.colluding, found.degree, found.threshold),
        -math.inf if found.complete else log_divided(found.clients, bad, found.degree),
        log_unfinished(found.clients, dropping, found.degree, found.threshold),
    )


def log_exposed(clients: int, colluding: int, degree: int, threshold: int) -> float:
    """That 2 threshold - degree or more of some honest client's neighbours collude."""
    least = 2 * threshold - degree
    return _all(clients - colluding, log_tail(clients - 1, colluding, degree, least))


def log_unfinished(clients: int, dropping: int, degree: int, threshold: int) -> float:
    """That more than degree - threshold of some client's neighbours drop out."""
    return _all(clients, log_tail(clients - 1, dropping, degree, degree - threshold + 1))


def log_divided(clients: int, bad: int, degree: int) -> float:
    """That degree / 2 neighbours on the ring are all bad."""
    width = degree // 2
    if bad < width:
        return -math.inf
    one = sum(math.log2(bad - i) - math.log2(clients - i) for i in range(width))
    return _all(clients, one)


def log_tail(size: int, marked: int, drawn: int, least: int) -> float:
    """log2 P(at least `least` of `drawn` are marked), without replacement."""
    first = max(least, drawn - (size - marked), 0)
    last = min(drawn, marked)
    if least <= max(0, drawn - (size - marked)):
        return 0.0
    if first > last:
        return -math.inf
    terms = [
        _choose(marked, k) + _choose(size - marked, drawn - k) - _choose(size, drawn)
        for k in range(first, last + 1)
    ]
    top = max(terms)
    return min(0.0, (top + math.log(sum(math.exp(term - top) for term in terms))) / math.log(2))


def _choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _all(clients: int, log_one: float) -> float:
    """A bound for any of so many."""
    return min(0.0, math.log2(clients) + log_one) if clients > 0 else -math.inf


def at_least(number: float) -> int:
    """Rounded up, as those who collude are."""
    return math.ceil(number - 1e-9)


def at_most(number: float) -> int:
    """Rounded down, as those who may be missing are."""
    return math.floor(number + 1e-9)
