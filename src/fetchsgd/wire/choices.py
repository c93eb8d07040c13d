"""What an encoder is free to choose: formats and frequencies. Everything else has one form.

A message is a payload and its choices, and both follow from the message. A writer in another
language may choose less well, for instance never to code by entropy; every reader reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fetchsgd.wire import positions, sizes
from fetchsgd.wire.gaps import GapCode, best_code
from fetchsgd.wire.payloads import Payload, SparseUpdate
from fetchsgd.wire.values import INTEGERS, Coding, Integers, array_of, table_for


@dataclass(frozen=True, eq=False)
class Choices:
    """How values are written, and how positions are."""

    values: Coding
    positions: int = positions.NONE
    gap_code: GapCode | None = None


def choose(payload: Payload) -> Choices:
    """The choices that make the smallest message, judged by the counts of symbols."""
    if not isinstance(payload, SparseUpdate):
        return Choices(payload.values.coding())
    count, dim = len(payload.indices), payload.dim
    if isinstance(payload.values, Integers) and 0 < count < dim:
        return _for_integer_update(payload.values, payload.indices, dim)
    return _with_positions(payload.values.coding(), payload.indices, dim)


def _for_integer_update(values: Integers, indices: Tensor, dim: int) -> Choices:
    counts = values.symbol_counts()
    everywhere = counts.copy()
    everywhere[0] += dim - len(indices)
    joint, separate = sizes.integer_update_candidates(torch.from_numpy(everywhere)[None], dim)
    if float(joint) < float(separate):
        return Choices(Coding(INTEGERS, table_for(everywhere)), positions.JOINT)
    return _with_positions(Coding(INTEGERS, table_for(counts)), indices, dim)


def _with_positions(coding: Coding, indices: Tensor, dim: int) -> Choices:
    count = len(indices)
    if count in (0, dim):
        return Choices(coding)
    if dim / 8 <= float(sizes.gap_bytes(dim, torch.tensor([float(count)]).double())):
        return Choices(coding, positions.BITMAP)
    code = best_code(dim, count)
    if count <= positions.MOST_GOLOMB:
        few = array_of(indices)
        by_gaps = positions.write(few, dim, positions.GAPS, code)
        if len(positions.write(few, dim, positions.GOLOMB, None)) <= len(by_gaps):
            return Choices(coding, positions.GOLOMB)
    return Choices(coding, positions.GAPS, code)
