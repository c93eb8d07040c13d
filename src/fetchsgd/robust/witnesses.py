"""How far each row is confirmed by the others: what rows say against liars without knowing any.

A row's witnesses are all others, and its score is the median of their cosines with it: a minority
moves it little. Rows that equal one another, and are fewer than half, are echoes of one: together
they count as a single witness, of others and not of themselves, and as a single row.

    honest rows     score about as high as is usual
    noise           scores 0
    what goes back  scores below 0

Where honest rows have little in common the usual score is no larger than the scores' spread, and
they say nothing about anyone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

Rows = Float32[Tensor, "groups numbers"]

SAME = 0.99  # cosines above this are of rows that say the same
SHARPEST = 25.0  # a single round does not leave out who is confirmed by an eighth of the usual
EVEN = 0.3  # of the usual score: less speaks for a lie, more against it
BOUNDS = (-1.0, 2.0)  # of a score over the usual one: nothing weighs more in a single round
TINY = 1e-30


class Confirmed(NamedTuple):
    """What the rows of a round say about each other.

    share: of a row's vote, where echoes divide one. scores: over the usual one, 1 for rows that
    are zero. sharpness: how far apart a lie and an honest row are, in squared deviations.
    """

    share: Float64[Tensor, " groups"]
    scores: Float64[Tensor, " groups"]
    sharpness: float


def confirmed(rows: Rows) -> Confirmed:
    """For at least three rows."""
    doubles = rows.double()
    norms = doubles.norm(dim=1)
    units = doubles / norms.clamp(min=TINY)[:, None]
    cosines = units @ units.T
    echo = echoes(cosines)
    share = 1 / echo.sum(1).double()
    scores = median(cosines, share * ~echo)
    usual = float(median(scores[None], share[None]))
    spread = 1.4826 * float(median((scores - usual).abs()[None], share[None]))
    if usual <= 0:
        return Confirmed(share, torch.ones_like(scores), 0.0)
    sharpness = min((usual / max(spread, TINY)) ** 2, SHARPEST)
    relative = (scores / usual).clamp(*BOUNDS)
    return Confirmed(share, torch.where(norms > 0, relative, 1.0), sharpness)


def echoes(cosines: Float64[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Which rows say the same as which others, themselves among them; a majority is no echo."""
    alone = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    same = (cosines > SAME) | alone
    few = 2 * same.sum(1) < len(cosines)
    return (same & few[:, None] & few) | alone


def evidence(found: Confirmed, sizes: Float64[Tensor, " groups"]) -> Float64[Tensor, " groups"]:
    """For a liar in each group, as a logarithm of odds; below 0 it is against one.

    sizes: of groups. Of several clients one liar takes but a part of what they have in common.
    """
    return found.sharpness / sizes * (1 - (1 - EVEN) / sizes - found.scores)


def median(
    values: Float64[Tensor, "rows n"], weights: Float64[Tensor, "rows n"]
) -> Float64[Tensor, " rows"]:
    """Row by row: half of the weight is not above it. The lower of two middle ones."""
    ordered, order = values.sort(dim=1)
    reached = weights.expand_as(values).gather(1, order).cumsum(1)
    half = reached[:, -1:] / 2 - 1e-9
    return ordered.gather(1, (reached < half).sum(1, keepdim=True))[:, 0]
