"""The size of `count` positions out of `dim`, from these two numbers alone.

The codes for gaps are made so that their length does not depend on where the positions lie
(gaps.py), so the mean over random positions is the size of any.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fetchsgd.wire import golomb
from fetchsgd.wire.frequencies import SYMBOLS, TOTAL
from fetchsgd.wire.gaps import BASE_BYTES, ESCAPE_HALVINGS, FINENESS, MOST_SHIFT
from fetchsgd.wire.segments import SEGMENT
from fetchsgd.wire.stream_sizes import number_size, stream_bytes

PARAMETERS = 4.0


def position_bytes(dim: int, count: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """The positions of so many values of a sparse update; nothing for none or all of them."""
    inside = (count > 0) & (count < dim)
    some = torch.where(inside, count, 1).double()
    if dim < 2:
        return torch.zeros_like(some)
    sizes = gap_bytes(dim, some)
    sizes = torch.where(some <= golomb.MOST, torch.minimum(sizes, golomb_bytes(dim, some)), sizes)
    sizes = sizes.clamp(max=float((dim + 7) // 8))
    return torch.where(inside, sizes, 0.0)


def golomb_bytes(dim: int, count: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Golomb's code of random positions."""
    m = torch.floor(dim / count * (45426 / 65536)).clamp(min=1)
    size = torch.ceil(torch.log2(m))
    spare = 2**size - m
    log_skip = torch.log1p(-count / dim)
    beyond = torch.exp(log_skip * m)
    short = torch.expm1(log_skip * spare) / torch.expm1(log_skip * m)
    quotient = beyond / (1 - beyond) + 1
    # Half a byte is lost at the end on average.
    return ((count + 1) * quotient + count * (size - short) + 3.5) / 8


def gap_bytes(dim: int, count: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Entropy-coded gaps of random positions, with the code of gaps.best_code."""
    shift = torch.floor(torch.log2(dim / count / FINENESS)).clamp(0, MOST_SHIFT)
    decay = -torch.log1p(-count / dim) * 2**shift
    ratio = torch.round(torch.exp(-decay) * 2**16).clamp(1, 2**16 - 1) / 2**16
    escape = torch.round(ESCAPE_HALVINGS * math.log(2) / decay).clamp(1, SYMBOLS - 1)
    bits_per_gap = _gap_bits(decay[:, None], ratio[:, None], escape[:, None])
    escapes = 1 / torch.expm1(decay * escape)
    segments = torch.ceil(count / SEGMENT)
    more = count * shift / 8 + BASE_BYTES * (segments - 1)
    more = more + segments * number_size(escapes * count / segments)
    return PARAMETERS + stream_bytes((1 + escapes) * count, count * bits_per_gap, more)


def _gap_bits(decay: Tensor, ratio: Tensor, escape: Tensor) -> Tensor:
    """Mean bits of the symbols of a gap."""
    symbol = torch.arange(SYMBOLS + 1, device=decay.device, dtype=torch.float64)
    starts = torch.floor((1 - ratio**symbol) * TOTAL)
    starts = torch.where(symbol > escape, float(TOTAL), starts)
    lengths = torch.log2(TOTAL / (starts[:, 1:] - starts[:, :-1]).clamp(min=1))
    symbol = symbol[:-1]
    # Each gap has one symbol below the escape, and escapes before it.
    below = torch.exp(-decay * symbol) * torch.expm1(-decay) / torch.expm1(-decay * escape)
    expected = torch.where(symbol < escape, below, 0.0)
    expected = torch.where(symbol == escape, 1 / torch.expm1(decay * escape), expected)
    return (expected * lengths).sum(dim=1)
