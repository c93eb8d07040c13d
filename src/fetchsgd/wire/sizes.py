"""Sizes of messages from a few counts, without encoding: what the simulator adds up.

All functions work on tensors of any device and never wait for one: a simulator counts thousands of
clients at once. Predictions are within half a percent of `len(encode(...))` for messages above
2 kB: they follow the encoder's own choices, and the mean of what it rounds.

The codes for gaps are made so that their length does not depend on where the positions lie
(gaps.py), so the mean over random positions is the size of any.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from fetchsgd.wire.gaps import BASE_BYTES, ESCAPE_HALVINGS, FINENESS, MOST_SHIFT
from fetchsgd.wire.header import HEADER_BYTES as HEADER_BYTES
from fetchsgd.wire.positions import MOST_GOLOMB
from fetchsgd.wire.rans import SHORT, SYMBOLS, TOTAL
from fetchsgd.wire.rans_loops import LANES
from fetchsgd.wire.segments import EXPANSION, SEGMENT

FLOAT_BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
# A state takes 4 bytes and holds one byte of its symbols on average.
LANE_BYTES = 3.0
GAP_PARAMETERS = 4.0


def floats_bytes(count: int, dtype: torch.dtype) -> int:
    """Floats as they are."""
    return count * FLOAT_BYTES[dtype]


def integer_bytes(histograms: Shaped[Tensor, "n 256"]) -> Float64[Tensor, " n"]:
    """The section of integers, from how often each bucket symbol occurs; 0 if there are none."""
    counts = histograms.double()
    total = counts.sum(dim=1)
    table, bits = with_symbol_table(counts)
    extra = (counts * extra_bits(counts.device)).sum(dim=1) / 8
    segments = torch.ceil(total / SEGMENT)
    # Each segment begins a new byte of extra bits.
    extra = torch.where(extra > 0, extra + segments * 0.4375, extra)
    sizes = segments * number_size(extra / segments.clamp(min=1))
    return torch.where(total > 0, table + stream_bytes(total, bits, extra + sizes), 0.0)


def position_bytes(dim: int, count: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """The positions section of a sparse update with `count` values; 0 for none or all of them."""
    inside = (count > 0) & (count < dim)
    some = torch.where(inside, count, 1).double()
    if dim < 2:
        return torch.zeros_like(some)
    sizes = gap_bytes(dim, some)
    sizes = torch.where(some <= MOST_GOLOMB, torch.minimum(sizes, golomb_bytes(dim, some)), sizes)
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
    return GAP_PARAMETERS + stream_bytes((1 + escapes) * count, count * bits_per_gap, more)


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


def number_size(value: Tensor) -> Tensor:
    """Bytes of numbers below 2^21 as LEB128."""
    return 1 + (value >= 1 << 7).long() + (value >= 1 << 14).long()


def stream_bytes(symbols: int | Tensor, bits: Tensor, more: Tensor | float = 0.0) -> Tensor:
    """A stream of `symbols` symbols that take `bits` bits, with `more` bytes beside them."""
    count = symbols if isinstance(symbols, Tensor) else torch.full_like(bits, float(symbols))
    segments = torch.ceil(count / SEGMENT)
    size = bits / 8 + LANE_BYTES * _lanes(count)
    directory = segments * number_size(size / segments.clamp(min=1))
    return torch.maximum(size + directory + more, torch.ceil(count / EXPANSION))


def _lanes(symbols: Tensor) -> Tensor:
    """States of all segments of a stream."""
    whole, rest = torch.floor(symbols / SEGMENT), symbols % SEGMENT
    last = torch.where(rest < SHORT, 1.0, float(LANES))
    return LANES * whole + last * (rest > 0)


def with_symbol_table(counts: Tensor, total: int | Tensor = TOTAL) -> tuple[Tensor, Tensor]:
    """Bytes of a table of symbols, which are the last dimension, and bits of all coded with it.

    Frequencies that add up to less than TOTAL are multiplied once they have been read.
    """
    frequencies = normalised(counts, total)
    return table_size(frequencies), coded_bits(counts, frequencies * (TOTAL / total))


def normalised(counts: Tensor, total: int | Tensor) -> Tensor:
    """About the frequencies of an encoder; not whole numbers, but at least 1."""
    share = counts * (total / counts.sum(dim=-1, keepdim=True).clamp(min=1))
    raised = torch.where(counts > 0, share.clamp(min=1), 0.0)
    # What was given to rare symbols is missing from the others.
    rare = (raised == 1).double()
    given = (raised * rare).sum(dim=-1, keepdim=True)
    left = (raised * (1 - rare)).sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(rare > 0, raised, raised * (total - given) / left)


def coded_bits(counts: Tensor, frequencies: Tensor) -> Tensor:
    bits = counts * torch.log2(TOTAL / frequencies.clamp(min=1))
    return bits.sum(dim=-1).clamp(min=0)


def table_size(frequencies: Tensor) -> Tensor:
    """LEB128 up to the last frequency that is not 0; two bytes for each run of zeros."""
    used = frequencies > 0
    numbers = (number_size(frequencies) * used).sum(dim=-1)
    before = torch.nn.functional.pad(used, (1, 0), value=True)[..., :-1]
    more_follows = used.flip(-1).cumsum(dim=-1).flip(-1) > 0
    return numbers + 2.0 * (~used & before & more_follows).sum(dim=-1)


def extra_bits(device: torch.device) -> Tensor:
    symbols = torch.arange(SYMBOLS, device=device)
    return torch.where(symbols < 16, 0, (symbols >> 2) - 2)
