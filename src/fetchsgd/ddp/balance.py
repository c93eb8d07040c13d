"""Tensors of one table made of like size, so that large gradients do not drown small ones.

Weights that share cells get noise of one size. With n_t weights in tensor t whose gradients have a
mean square v_t, all divided by scales s_t before they are sketched and multiplied by them after,
the noise in tensor t is s_t^2 for each weight, times

    (sum of n_t v_t / s_t^2) / cols

Over all weights that is least for s_t^2 = sqrt(v_t), which is what plain SGD wants. An optimiser
that divides each weight's gradient by its usual size, as Adam does, feels noise in terms of v_t,
and that is least for s_t^2 = v_t. So s_t = v_t^(balance / 2), with a balance from 0.5 to 1.

The sizes are those of the steps before, as all ranks have them together: they travel beside the
table, one number for a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float32
from torch import Tensor

RATE = 0.1  # by which sizes move in a step

PerTensor = Float32[Tensor, " tensors"]


def mean_squares(parts: Sequence[Tensor]) -> PerTensor:
    """Of a rank's own gradients."""
    norms = torch._foreach_norm([part.float() for part in parts])
    torch._foreach_div_(norms, [math.sqrt(part.numel()) for part in parts])
    return torch.stack(norms).square_()


def scales(size: PerTensor, balance: float) -> PerTensor:
    """Tensors that had no gradient yet count as the smallest; 1 for all where none had."""
    known = size > 0
    least = torch.where(known, size, torch.inf).amin()
    filled = torch.where(known, size, torch.where(least.isfinite(), least, 1.0))
    return filled ** (balance / 2)


def next_size(size: PerTensor, found: PerTensor) -> PerTensor:
    """From the sizes before and those of all ranks in this step."""
    return torch.where(size > 0, torch.lerp(size, found, RATE), found)
