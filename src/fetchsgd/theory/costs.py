"""Bytes that follow from a table: a client's message, and what the server keeps between rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fetchsgd.quantisers.level_layout import BITS
from fetchsgd.quantisers.level_sizes import packed_bytes
from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.sketch.windows.pruning import most_sketches
from fetchsgd.theory.tables import MOST_ROUNDS, TableSize
from fetchsgd.wire.sizes import HEADER_BYTES, floats_bytes

FLOATS = {32: torch.float32, 16: torch.bfloat16}
BYTES_PER_CELL = 4  # the server's tables are float32 whatever was sent


@dataclass(frozen=True)
class Costs:
    """Of one client's message a round, and of the server's tables."""

    upload_bytes: int
    compression: float  # of 4 bytes a weight
    server_bytes: int


@dataclass(frozen=True)
class Windows:
    """How many error tables a sliding window of this many rounds takes."""

    window: int
    every: int  # one for every suffix, as in the proof of Theorem 2
    pruned: int  # at most, as a smooth histogram


def costs(table: TableSize, dim: int, kept: int, bits: int = 32) -> Costs:
    """For a server that keeps `kept` tables: momentum and error, or the tables of a window.

    Below 16 bits this is the size before entropy coding, which only ever takes less.
    """
    check_whole_number("dim", dim, 1)
    check_whole_number("kept", kept, 1)
    if bits not in FLOATS and bits not in BITS:
        choices = ", ".join(str(choice) for choice in (*FLOATS, *reversed(BITS)))
        raise ValueError(f"bits must be one of {choices}, got {bits!r}")
    cells = table.cells
    body = floats_bytes(cells, FLOATS[bits]) if bits in FLOATS else packed_bytes(bits, cells)
    upload = HEADER_BYTES + body
    return Costs(upload, BYTES_PER_CELL * dim / upload, kept * BYTES_PER_CELL * cells)


def windows(window: int, eps: float = 0.5) -> Windows:
    """Section 4.2 and appendix D: `window` tables, or O(log window / eps) of them.

    The pruning of appendix D (Braverman and Ostrovsky's smooth histograms) is proved for functions
    that only grow with the window. The norm of a sum of gradients may shrink, so with pruned
    tables the theorem is not proved; `fetchsgd.sketch.windows` keeps their number below this
    nevertheless.
    """
    check_whole_number("window", window, 1, MOST_ROUNDS)
    return Windows(window, window, most_sketches(window, eps))
