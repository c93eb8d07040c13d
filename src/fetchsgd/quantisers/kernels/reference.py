"""Quantisation in plain torch, from the definitions in levels.py and steps.py; slow, on any device.

Words of 32 bits live in int64, since torch has hardly any arithmetic for uint32.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int, Int32, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.level_layout import CELLS_PER_SYMBOL, RUN, num_runs, top_level
from fetchsgd.quantisers.step_layout import CHUNK, MOST_LEVEL, num_chunks

LOW = 0xFFFFFFFF
# Bits of floats: infinity, NaN, the largest bfloat16, and the smallest scale, 2^-100.
INFINITY, NAN, LARGEST, SMALLEST = 0x7F800000, 0x7FC00000, 0x7F7F0000, 0x0D800000


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., 2011): four random words for a counter of four words."""
    a, b, c, d = counter
    key_a, key_b = key & LOW, key >> 32
    for _ in range(10):
        # Products wrap around in int64, which leaves all 64 bits as they should be.
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (q >> 32 & LOW) ^ b ^ key_a, q & LOW
        c, d = (p >> 32 & LOW) ^ d ^ key_b, p & LOW
        key_a, key_b = key_a + 0x9E3779B9 & LOW, key_b + 0xBB67AE85 & LOW
    return a, b, c, d


def random_words(streams: Int64[Tensor, " n"], runs: int, key: int) -> Int64[Tensor, "n runs 256"]:
    """A word for every cell."""
    shape = (len(streams), runs, RUN // 4)
    place = torch.arange(RUN // 4, device=streams.device).expand(shape)
    run = torch.arange(runs, device=streams.device)[:, None].expand(shape)
    stream = streams[:, None, None].expand(shape)
    return torch.cat(philox((place, run, stream & LOW, stream >> 32 & LOW), key), dim=-1)


def in_runs(cells: Float32[Tensor, "n count"]) -> Float32[Tensor, "n runs 256"]:
    """Cells by run, the last one filled up with zeros."""
    n, count = cells.shape
    runs = num_runs(count)
    return torch.nn.functional.pad(cells, (0, runs * RUN - count)).view(n, runs, RUN)


def cut_to_bfloat16(size: Int64[Tensor, "*n"], extra: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """Bits of a magnitude, moved up by `extra` and cut to bfloat16; none turns into infinity."""
    finite = (size + extra & 0xFFFF0000).clamp(max=LARGEST)
    other = torch.where(size > INFINITY, NAN, INFINITY)
    return torch.where(size < INFINITY, finite, other)


def quantise(
    cells: Float32[Tensor, "n count"], bits: int, key: int, streams: Int64[Tensor, " n"]
) -> tuple[Float32[Tensor, "n runs"], UInt8[Tensor, "n symbols"]]:
    """Scales and symbols of each row."""
    top, per_symbol = top_level(bits), CELLS_PER_SYMBOL[bits]
    run = in_runs(cells)
    n, runs, _ = run.shape
    size = (run.view(torch.int32) & 0x7FFFFFFF).amax(dim=-1).long()
    scale = cut_to_bfloat16(size, torch.full_like(size, 0xFFFF))
    scale = torch.where(scale < SMALLEST, 0, scale)
    scales = scale.int().view(torch.float32)
    usable = ((scale > 0) & (scale < INFINITY))[..., None]
    divisor = torch.where(usable, scales[..., None], 1.0)
    place = torch.where(usable, run, 0.0) * (torch.full_like(divisor, top) / divisor) * 2.0**24
    limit = float(top << 24)
    levels = place.clamp(-limit, limit).long() + (random_words(streams, runs, key) >> 8) >> 24
    parts = (levels + top).view(n, runs, per_symbol, RUN // per_symbol)
    symbols = (parts << _shifts(bits, cells.device)).sum(dim=2)
    return scales, symbols.to(torch.uint8).view(n, runs * RUN // per_symbol)


def levels_of(
    symbols: UInt8[Tensor, "n symbols"], bits: int, runs: int
) -> Int64[Tensor, "n runs 256"]:
    """The level of every cell, from -L to L."""
    parts = symbols.long().view(len(symbols), runs, 1, RUN // CELLS_PER_SYMBOL[bits])
    stored = parts >> _shifts(bits, symbols.device) & (1 << bits) - 1
    return stored.view(len(symbols), runs, RUN) - top_level(bits)


def _shifts(bits: int, device: torch.device) -> Int64[Tensor, "cells 1"]:
    """Where in a symbol each of its cells begins."""
    return torch.arange(0, bits * CELLS_PER_SYMBOL[bits], bits, device=device)[:, None]


def weighted_sum(
    scales: Float32[Tensor, "n runs"],
    symbols: UInt8[Tensor, "n symbols"],
    bits: int,
    count: int,
    weights: Float32[Tensor, " n"],
) -> Float32[Tensor, " count"]:
    """The sum of weights[i] * row i, dequantised, in order of i."""
    # Divided by a tensor: on a GPU torch multiplies by the inverse of a plain number instead.
    steps = weights[:, None] * (scales / torch.full_like(scales, top_level(bits)))
    levels = levels_of(symbols, bits, scales.shape[1])
    total = torch.zeros(scales.shape[1], RUN, dtype=torch.float32, device=scales.device)
    for step, level in zip(steps, levels, strict=True):
        total += step[:, None] * level.float()
    return total.flatten()[:count]


def histograms(symbols: UInt8[Tensor, "n symbols"]) -> Int64[Tensor, "n 256"]:
    """How often each symbol occurs in each row."""
    counts = torch.zeros(len(symbols), 256, dtype=torch.int64, device=symbols.device)
    at = symbols.long()
    return counts.scatter_add_(1, at, torch.ones_like(at))


def round_to_bfloat16(
    cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
) -> Float32[Tensor, "n count"]:
    """Add 16 random bits to the bits of each cell, and cut."""
    n, count = cells.shape
    run = in_runs(cells)
    runs = run.shape[1]
    bits = run.view(torch.int32).long() & LOW
    extra = random_words(streams, runs, key) & 0xFFFF
    moved = cut_to_bfloat16(bits & 0x7FFFFFFF, extra) | bits & 0x80000000
    # From 2^31 on, int32 holds the same bits as a negative number.
    signed = torch.where(moved > 0x7FFFFFFF, moved - (1 << 32), moved)
    return signed.int().view(torch.float32).view(n, runs * RUN)[:, :count].contiguous()


def add_squares(
    cells: Float32[Tensor, "n count"],
) -> tuple[Int64[Tensor, "n chunks"], Int32[Tensor, "n chunks"]]:
    """Sums of squares of chunks, in whole numbers, and the bits of the largest magnitudes."""
    n, count = cells.shape
    chunks = num_chunks(count)
    padded = torch.nn.functional.pad(cells, (0, chunks * CHUNK - count)).view(n, chunks, CHUNK)
    magnitude = padded.view(torch.int32) & 0x7FFFFFFF
    size = magnitude.amax(dim=-1)
    exponent = magnitude >> 23
    whole = magnitude & 0x7FFFFF | torch.where(exponent > 0, 0x800000, 0)
    shift = (size >> 23).clamp(min=1)[..., None] - exponent.clamp(min=1)
    cut = whole.long() >> shift.clamp(max=31)
    return (cut * cut).sum(dim=-1), size


def round_places(
    cells: Float32[Tensor, "n count"],
    steps: Float32[Tensor, " n"],
    dtype: torch.dtype,
    key: int,
    streams: Int64[Tensor, " n"],
) -> Int[Tensor, "n count"]:
    """Levels of each row, by its step."""
    count = cells.shape[1]
    run = in_runs(cells)
    usable = ((steps > 0) & (steps < torch.inf))[:, None, None]
    divisor = torch.where(usable, steps[:, None, None], 1.0)
    limit = float(MOST_LEVEL[dtype]) * 2.0**24
    place = torch.where(usable, run, 0.0) * (torch.ones_like(divisor) / divisor) * 2.0**24
    words = random_words(streams, run.shape[1], key)
    levels = place.clamp(-limit, limit).long() + (words >> 8) >> 24
    return levels.flatten(1)[:, :count].to(dtype).contiguous()


def sum_levels(
    levels: Int[Tensor, "n count"], steps: Float32[Tensor, " n"]
) -> Float32[Tensor, " count"]:
    """The sum of steps[i] * row i, in order of i."""
    total = torch.zeros(levels.shape[1], dtype=torch.float32, device=levels.device)
    for step, row in zip(steps, levels, strict=True):
        total += step * row.float()
    return total
