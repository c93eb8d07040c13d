"""The step of the next round, from what a sum has shown: nothing else is public.

A cell of a sum, in levels, is close to normal, with the variance of its block. It wraps around
where it leaves [-2^(b-1), 2^(b-1)). How much finer could the step have been, at the asked
probability of that over all blocks? By s:

    s < 1:  the step becomes coarser at once, by 1 / s^2: variances fall at least as s, where
            clients' own rounding is all there is to see.
    s >= 1: the step becomes finer, which is safe up to s, since variances grow at most as s^2. But
            sums jump up and down from round to round, so it goes there slowly: by a root of s. Only
            where numbers are lost in rounding does it leap, as nothing else is to be seen.

A sum of fewer clients than usual is smaller, by their number at most, and is taken for as much
larger. One of less than half of them, as the last of an epoch often is, can only say that the step
is too fine: believing it costs the next sum.

No step need be finer than what makes rounding a small part of a sum: with many bits the rest of the
range is kept for sums that jump.

Once most cells wrap, all that a sum shows is that the step is far too small: it becomes 32 times as
large, until something can be seen. Such a sum is not used, and neither is one with so coarse a step
that it may be rounding alone: the rounds in which the step is searched.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from fetchsgd.sums.layout import Layout

# Sums grow from round to round: numbers are taken for so much larger. That is the square of it in
# the variance of a sum, but for what may be rounding, which grows as numbers do. Runs on digits
# wrap less often than asked with this, and with 1.75 their steps are too coarse at 4 bits.
MARGIN = 1.25
# The variance of a sum over the most that rounding adds to it, above which no step need be finer.
FINE = 100.0
# Factors s that are looked at: eight for each doubling.
FACTORS = torch.exp2(torch.arange(-6 * 8, 10 * 8 + 1, dtype=torch.float64) / 8)
# A step that is too coarse moves by a root of s, and leaps if it is by FAR or more.
FAR, ROOT, LEAP = 16.0, 1 / 8, 1 / 2
# From this part of the variance of uniform cells on, a sum says nothing.
UNIFORM, BACK_OFF = 0.75, 32.0
# Below so many levels in all, one cannot tell how small numbers are.
FEW, FEW_FACTOR = 64, 512.0
STEPS = (2.0**-100, 2.0**100)


class Seen(NamedTuple):
    """What a sum has shown."""

    next_step: Float64[Tensor, ""]
    wrap_probability: Float64[Tensor, ""]  # of a cell in this sum, as estimated
    usable: Bool[Tensor, ""]


def look(
    step: Float64[Tensor, ""],
    levels: Int64[Tensor, " cells"],
    layout: Layout,
    bits: int,
    probability: float,
    clients: int,
    arrived: int | None = None,
) -> Seen:
    """`levels`: a sum modulo 2^bits, centred, of those who arrived of so many clients."""
    n = clients if arrived is None else max(arrived, 1)
    squares = levels.view(layout.block, layout.blocks).square().sum(dim=0)  # exact
    variances = squares.double() / layout.block
    mean, half = variances.mean(), float(1 << bits - 1)
    rounding = n / 4  # the most that it adds to the variance of a cell
    are_few = 2 * n < clients
    s = _room(_grown(variances, rounding, 1 if are_few else max(clients / n, 1)), half, probability)
    s = torch.where(squares.sum() < FEW, s.clamp(max=FEW_FACTOR), s)
    s = s.clamp(max=1.0) if are_few else s
    enough = (FINE * rounding / mean.clamp(min=1e-300)).sqrt()
    wanted = torch.minimum(s, enough).clamp(min=1 / FAR)
    searching = (wanted >= FAR) & (mean < rounding)
    finer = torch.where(searching, wanted * LEAP, wanted**ROOT)
    factor = torch.where(s < 1, 1 / s**2, 1 / finer)
    is_noise = mean >= UNIFORM * half**2 / 3
    moved = (step * torch.where(is_noise, BACK_OFF, factor)).clamp(*STEPS)
    chance = wrap_chance(half, variances.sqrt()).mean()
    return Seen(moved, torch.where(is_noise, 1.0, chance), ~(is_noise | searching))


def _grown(
    variances: Float64[Tensor, " blocks"], rounding: float, clients: float
) -> Float64[Tensor, " blocks"]:
    """As the next sum's may be, of so many times as many clients."""
    more = MARGIN * clients
    return more * variances + more * (more - 1) * (variances - rounding).clamp(min=0)


def _room(
    variances: Float64[Tensor, " blocks"], half: float, probability: float
) -> Float64[Tensor, ""]:
    """By how much standard deviations could be larger: the largest factor that fits."""
    factors = FACTORS.to(variances.device)
    chances = wrap_chance(half, factors[:, None] * variances.sqrt()).mean(dim=1)
    return factors[(chances <= probability).sum().clamp(min=1) - 1]


def wrap_chance(half: float, deviation: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """That a normal number of this standard deviation is beyond +-half."""
    return torch.erfc(half / math.sqrt(2) / deviation.clamp(min=1e-300))
