"""The step of the next round, from what a sum has shown: nothing else is public.

A cell of a sum, in levels, is close to normal, with the variance of its block. It wraps around where
it leaves [-2^(b-1), 2^(b-1)). How much finer could the step have been for the asked probability of
that, over all blocks? By s:

    s >= 1: variances in levels grow at most as s^2, so step / s is safe. Of a small s we take the
            root, since the next sum may be larger.
    s < 1:  variances fall at least as s, where clients' own rounding is all there is to see; so
            step / s^2 is safe.

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

# Sums grow from round to round: standard deviations are taken for so much larger.
MARGIN = 1.2
# Factors s that are looked at: eight for each doubling.
FACTORS = torch.exp2(torch.arange(-6 * 8, 10 * 8 + 1, dtype=torch.float64) / 8)
# From this part of the variance of uniform cells on, a sum says nothing.
UNIFORM = 0.75
BACK_OFF = 32.0
# Below so many levels in all, one cannot tell how small numbers are.
FEW, FEW_FACTOR = 64, 64.0
# A step that could be finer by this is a step that is still searched.
FAR = 8.0
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
) -> Seen:
    """`levels`: a sum of that many clients, modulo 2^bits and centred."""
    squares = levels.view(layout.block, layout.blocks).square().sum(dim=0)  # exact
    variances = squares.double() / layout.block
    mean, half = variances.mean(), float(1 << bits - 1)
    chances = wrap_chance(half, FACTORS.to(levels.device)[:, None] * MARGIN * variances.sqrt())
    fits = (chances.mean(dim=1) <= probability).sum().clamp(min=1)
    s = FACTORS.to(levels.device)[fits - 1]
    s = torch.where(squares.sum() < FEW, s.clamp(max=FEW_FACTOR), s)
    wrapped = mean >= UNIFORM * half**2 / 3
    finer = torch.where(s < 4, s.sqrt(), s / 2)
    factor = torch.where(s < 1, 1 / s**2, 1 / finer)
    moved = (step * torch.where(wrapped, BACK_OFF, factor)).clamp(*STEPS)
    searching = (s > FAR) & (mean < clients / 4)  # the most that rounding adds to a cell
    chance = wrap_chance(half, variances.sqrt()).mean()
    return Seen(moved, torch.where(wrapped, 1.0, chance), ~(wrapped | searching))


def wrap_chance(
    half: float, deviation: Float64[Tensor, "*shape"]
) -> Float64[Tensor, "*shape"]:
    """That a normal number of this standard deviation is beyond +-half."""
    return torch.erfc(half / math.sqrt(2) / deviation.clamp(min=1e-300))
