"""What surrounds entropy-coded bits: states, directories and padding, as a number of bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from fetchsgd.wire.rans import SHORT
from fetchsgd.wire.rans_loops import LANES
from fetchsgd.wire.segments import EXPANSION, SEGMENT

# A state takes 4 bytes and holds one byte of its symbols on average.
LANE_BYTES = 3.0


def number_size(value: Tensor) -> Tensor:
    """Bytes of numbers below 2^21 as LEB128."""
    return 1 + (value >= 1 << 7).long() + (value >= 1 << 14).long()


def stream_bytes(symbols: int | Tensor, bits: Tensor, more: Tensor | float = 0.0) -> Tensor:
    """So many symbols in so many bits, with `more` bytes in the same stream."""
    count = symbols if isinstance(symbols, Tensor) else torch.full_like(bits, float(symbols))
    segments = torch.ceil(count / SEGMENT)
    size = bits / 8 + LANE_BYTES * lanes(count)
    directory = segments * number_size(size / segments.clamp(min=1))
    return torch.maximum(size + directory + more, torch.ceil(count / EXPANSION))


def lanes(symbols: Tensor) -> Tensor:
    """States of all segments of a stream."""
    whole, rest = torch.floor(symbols / SEGMENT), symbols % SEGMENT
    last = torch.where(rest < SHORT, 1.0, float(LANES))
    return LANES * whole + last * (rest > 0)
