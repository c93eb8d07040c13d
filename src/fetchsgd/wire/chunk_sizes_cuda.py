"""Sizes of sparse integers on a GPU: which program does what."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.wire import chunk_size_programs as programs
from fetchsgd.wire.chunk_loops import CLASSES
from fetchsgd.wire.chunk_statistics import Statistics
from fetchsgd.wire.chunks import COUNTS, MOST_TABLES
from fetchsgd.wire.segments import EXPANSION
from fetchsgd.wire.sharing import (
    GROUPS,
    HEAD_BYTES,
    LEAST_TABLE,
    LEAST_WIDTH,
    PRECISION_FROM,
    TABLES,
)
from fetchsgd.wire.sizes import LANE_BYTES

BLOCK = 16  # pages at once


def sparse_bytes(
    found: Statistics,
    rank_bits: Float64[Tensor, " counts"],
    extra_bits: Float64[Tensor, " symbols"],
) -> Float64[Tensor, " n"]:
    """As in chunk_sizes.py."""
    rows, pages, _ = found.values.shape
    device, spans = found.values.device, found.nonzeros.shape[1]
    out = torch.empty(rows, dtype=torch.float64, device=device)
    if rows == 0:
        return out
    least, (low, high), more = PRECISION_FROM
    precision = least, low, high, more
    starts, ends, lows, highs = _ranges(device)
    tables, groups = len(lows), len(starts)
    sizes, kinds = (
        torch.empty(rows, pages, device=device, dtype=t) for t in (torch.float32, torch.int32)
    )
    shared, grouped, extra = (
        torch.empty(rows, n, dtype=torch.float32, device=device) for n in (tables, groups, 1)
    )
    launch(
        programs.page_kinds, (rows,),
        found.values, sizes, kinds, pages, LEAST_WIDTH, KINDS=MOST_TABLES, BLOCK=BLOCK,
    )  # fmt: skip
    launch(
        programs.value_bytes, (tables, rows),
        found.values, kinds, found.nonzeros, extra_bits, lows, highs, shared, extra, pages, spans,
        *precision, TABLES=tables, BLOCK=BLOCK,
    )  # fmt: skip
    launch(
        programs.group_bytes, (groups, rows),
        found.counts, found.nonzeros, starts, ends, grouped, spans, *precision, LEAST_TABLE,
        GROUPS=groups, CLASSES=CLASSES, COUNTS=COUNTS, num_warps=1,
    )  # fmt: skip
    launch(
        programs.all_bytes, (rows,),
        found.counts, found.nonzeros, rank_bits, grouped, shared, extra, out, pages, spans,
        HEAD_BYTES, LANE_BYTES, EXPANSION,
        GROUPS=groups, TABLES=tables, CLASSES=CLASSES, COUNTS=COUNTS, num_warps=1,
    )  # fmt: skip
    return out


@lru_cache
def _ranges(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and one past the last: classes of each group, kinds of each table in each way."""
    kinds = [(i * MOST_TABLES // n, (i + 1) * MOST_TABLES // n) for n in TABLES for i in range(n)]
    starts, ends = torch.tensor(GROUPS, dtype=torch.int32).T.contiguous().to(device)
    lows, highs = torch.tensor(kinds, dtype=torch.int32).T.contiguous().to(device)
    return starts, ends, lows, highs
