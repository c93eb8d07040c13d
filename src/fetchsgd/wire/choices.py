"""What an encoder is free to choose: formats and frequencies. Everything else has one form.

A message is a payload and its choices, and both follow from the message. A writer in another
language may choose less well, for instance never to code by entropy; every reader reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.quantisers import cells
from fetchsgd.quantisers.levels import CELLS_PER_SYMBOL, Quantised
from fetchsgd.wire import golomb, integers, positions, rans, sizes
from fetchsgd.wire.frequencies import (
    CELL_TOTAL,
    TOTAL,
    Frequencies,
    cell_counts,
    normalise,
    table_bytes,
)
from fetchsgd.wire.gaps import GapCode, best_code
from fetchsgd.wire.payloads import Floats, Integers, Payload, SparseUpdate, Values
from fetchsgd.wire.position_sizes import gap_bytes
from fetchsgd.wire.stream_sizes import stream_bytes

FLOAT_FORMATS = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
INTEGERS = 4


@dataclass(frozen=True, eq=False)
class Choices:
    """Format bytes of the header, a table for the values, parameters for gaps."""

    values: int
    table: Frequencies | None = None
    positions: int = positions.NONE
    gap_code: GapCode | None = None


def choose(payload: Payload) -> Choices:
    """The choices that make the smallest message, by what counts of symbols say."""
    if not isinstance(payload, SparseUpdate):
        return _for_values(payload.values)
    count, dim = len(payload.indices), payload.dim
    if isinstance(payload.values, Integers) and 0 < count < dim:
        return _for_integer_update(payload.values, payload.indices, dim)
    return _with_positions(_for_values(payload.values), payload.indices, dim)


def _for_values(values: Values) -> Choices:
    if isinstance(values, Floats):
        return Choices(FLOAT_FORMATS[values.values.dtype])
    if isinstance(values, Integers):
        return Choices(INTEGERS, _table(_bucket_counts(values)))
    return _for_cells(values)


def _for_cells(values: Quantised) -> Choices:
    counts = rans.histogram(values.symbols.cpu().contiguous().numpy())
    packed = sizes.packed_bytes(values.bits, values.count)
    best, smallest = Choices(cells.PACKED + values.bits), float(packed)
    if values.count == 0:
        return best
    tables = {cells.EXPLICIT: normalise(counts, TOTAL)}
    if CELLS_PER_SYMBOL[values.bits] > 1:
        tables[cells.CELLS] = normalise(cell_counts(counts, values.bits), CELL_TOTAL)
    for format, table in tables.items():
        model = cells.symbol_model(table, values.bits, format)
        overhead = 2 * len(values.scales) + len(table_bytes(table))
        size = overhead + float(stream_bytes(int(counts.sum()), torch.tensor(model.bits(counts))))
        if size < smallest:
            best, smallest = Choices(format + values.bits, table), size
    return best


def _with_positions(choices: Choices, indices: Tensor, dim: int) -> Choices:
    count = len(indices)
    if count in (0, dim):
        return choices
    if dim / 8 <= float(gap_bytes(dim, torch.tensor([float(count)]).double())):
        return replace(choices, positions=positions.BITMAP)
    code = best_code(dim, count)
    if count <= golomb.MOST:
        few = indices.cpu().numpy()
        by_gaps = positions.write(few, dim, positions.GAPS, code)
        if len(positions.write(few, dim, positions.GOLOMB, None)) <= len(by_gaps):
            return replace(choices, positions=positions.GOLOMB)
    return replace(choices, positions=positions.GAPS, gap_code=code)


def _for_integer_update(values: Integers, indices: Tensor, dim: int) -> Choices:
    counts = _bucket_counts(values)
    everywhere = counts.copy()
    everywhere[0] += dim - len(indices)
    joint, separate = sizes.integer_update_candidates(torch.from_numpy(everywhere)[None], dim)
    if float(joint) < float(separate):
        return Choices(INTEGERS, _table(everywhere), positions.JOINT)
    return _with_positions(Choices(INTEGERS, _table(counts)), indices, dim)


def _bucket_counts(values: Integers) -> NDArray[np.int64]:
    return rans.histogram(integers.symbols_of(values.values.cpu().contiguous().numpy()))


def _table(counts: NDArray[np.int64]) -> Frequencies | None:
    return normalise(counts, TOTAL) if counts.any() else None
