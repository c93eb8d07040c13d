"""What an encoder is free to choose: formats and frequencies. Everything else has one form.

A message is a payload and its choices, and both follow from the message. A writer in another
language may choose less well, for instance never to code by entropy; every reader reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fetchsgd.wire import positions, sizes
from fetchsgd.wire.chunk_sizes import SPARSEST, update_candidates
from fetchsgd.wire.chunk_sizes import best_code as best_chunk_code
from fetchsgd.wire.gaps import GapCode, best_code
from fetchsgd.wire.payloads import Payload, SparseUpdate
from fetchsgd.wire.sparse_integers import sparse_statistics
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
    if dim > SPARSEST * len(indices):
        return _with_positions(values.coding(), indices, dim)
    found = sparse_statistics(dim, indices, values.values)
    sizes = {form: float(size) for form, size in update_candidates(found, dim).items()}
    form = min(sizes, key=sizes.__getitem__)
    if form == positions.CHUNKS:
        return Choices(Coding(INTEGERS, chunks=best_chunk_code(found)), form)
    counts = values.symbol_counts()
    if form == positions.JOINT:
        counts[0] = dim - len(indices)
        return Choices(Coding(INTEGERS, table_for(counts)), form)
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
