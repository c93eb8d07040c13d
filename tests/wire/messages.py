"""Payloads and messages that the tests of the wire format share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import torch

from fetchsgd.quantisers import Eden, TwoBits
from fetchsgd.quantisers.eden_section import EdenMessage
from fetchsgd.quantisers.level_layout import CELLS_PER_SYMBOL, RUN, num_runs
from fetchsgd.quantisers.levels import Quantised
from fetchsgd.quantisers.step_section import OneStep
from fetchsgd.quantisers.two_bits import TwoBitMessage
from fetchsgd.sums import Modular
from fetchsgd.sums.residues import Residues
from fetchsgd.wire import (
    Coding,
    DenseVector,
    Floats,
    Integers,
    SketchTable,
    SparseIntegers,
    SparseUpdate,
    WholeModel,
    encode,
)
from fetchsgd.wire.choices import Choices
from fetchsgd.wire.chunk_sizes import best_code
from fetchsgd.wire.codec import write
from fetchsgd.wire.gaps import best_code as best_gap_code
from fetchsgd.wire.header import HEADER_BYTES
from fetchsgd.wire.integers import symbols_of
from fetchsgd.wire.positions import BITMAP, CHUNKS, GAPS, GOLOMB, JOINT
from fetchsgd.wire.rans import TOTAL, histogram, normalise
from fetchsgd.wire.sparse_integers import sparse_statistics


def same(a, b) -> bool:
    """Equal to the bit, NaNs included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return a.view(bits).equal(b.view(bits))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


def symbols_of_cells(levels: np.ndarray, bits: int) -> np.ndarray:
    """Levels from 0 to 2 L, in whole runs, as symbols."""
    per_symbol = CELLS_PER_SYMBOL[bits]
    parts = levels.reshape(-1, per_symbol, RUN // per_symbol)
    return sum(parts[:, i] << bits * i for i in range(per_symbol)).astype(np.uint8).ravel()


def quantised(bits: int, count: int, rng: np.random.Generator, spread: float = 0.33) -> Quantised:
    """Gaussian cells whose standard deviation is `spread` of the scale."""
    top = 2 ** (bits - 1) - 1
    levels = np.full(num_runs(count) * RUN, top)
    levels[:count] += np.clip(np.rint(rng.normal(size=count) * top * spread), -top, top).astype(int)
    scales = torch.from_numpy(rng.random(num_runs(count), dtype=np.float32)).bfloat16().float()
    return Quantised(bits, count, scales, torch.from_numpy(symbols_of_cells(levels, bits)))


def integers(count: int, rng: np.random.Generator, scale: float = 3) -> Integers:
    """Whole numbers that are not zero."""
    values = np.rint(rng.normal(size=count) * scale).astype(np.int64)
    return Integers(torch.from_numpy(np.where(values == 0, 1, values)))


def subset(dim: int, count: int, kind: str, rng: np.random.Generator) -> torch.Tensor:
    """Sorted positions: anywhere, in runs of 64, all in one run, or evenly spaced."""
    if kind == "random":
        found = np.sort(rng.choice(dim, count, replace=False))
    elif kind == "runs" and count <= dim // 64 * 64:
        starts = np.sort(rng.choice(dim // 64, -(-count // 64), replace=False)) * 64
        found = (starts[:, None] + np.arange(64)).ravel()[:count]
    elif kind == "front":
        found = np.arange(count)
    else:
        found = np.arange(count) * (dim // max(count, 1))
    return torch.from_numpy(found)


def assert_predicted(section_bytes: float | torch.Tensor, message: bytes) -> None:
    """The size of the sections is within half a percent for messages that are not tiny."""
    off = abs(HEADER_BYTES + float(section_bytes) - len(message))
    assert off <= 0.005 * len(message) if len(message) >= 2000 else off <= 16


def one_of_each() -> dict[str, bytes]:
    """A small message of each kind and format."""
    rng = np.random.default_rng(0)
    three = torch.tensor([1.0, -2.0, float("nan")])
    found = {
        "dense-float32": encode(DenseVector(Floats(three), 7)),
        "model-float16": encode(WholeModel(Floats(three.half()))),
        "sketch-bfloat16": encode(SketchTable(9, 1, 3, 2, 5, Floats(three.bfloat16()))),
        "permuted-float16": encode(
            SketchTable(9, 1, 3, 2, 5, Floats(three.half()), 8, "permutation")
        ),
        "dense-integers": encode(DenseVector(integers(40, rng, 30))),
        "integers-of-all-sizes": encode(DenseVector(Integers(2 ** torch.arange(63)))),
    }
    for bits in CELLS_PER_SYMBOL:
        cells = DenseVector(quantised(bits, 300, rng, 0.3))
        counts = histogram(cells.values.symbols.numpy())
        found[f"packed-{bits}"] = write(cells, Choices(Coding(0x10 + bits)))
        coding = Coding(0x20 + bits, normalise(counts, TOTAL))
        found[f"explicit-{bits}"] = write(cells, Choices(coding))
        if bits < 6:
            found[f"cells-{bits}"] = encode(cells)
    sparse = SparseUpdate(300, subset(300, 40, "random", rng), integers(40, rng))
    counts = histogram(symbols_of(sparse.values.values.numpy()))
    table = normalise(counts, TOTAL)
    counts[0] = 260
    found["sparse-joint"] = write(sparse, Choices(Coding(4, normalise(counts, TOTAL)), JOINT))
    chunks = best_code(sparse_statistics(300, sparse.indices, sparse.values.values))
    found["sparse-chunks"] = write(sparse, Choices(Coding(4, chunks=chunks), CHUNKS))
    levels = np.rint(rng.normal(size=(5, 200)) * [[0], [0.3], [2], [0.3], [1e9]]).astype(np.int64)
    dense = torch.from_numpy(levels.ravel())
    found["chunks"] = encode(DenseVector(SparseIntegers.from_dense(dense)))
    nothing = SparseIntegers.from_dense(torch.zeros(70, dtype=torch.int64))
    found["chunks-of-nothing"] = encode(WholeModel(nothing))
    found["one-step"] = encode(DenseVector(OneStep(0.375, SparseIntegers.from_dense(dense // 2))))
    found["one-step-of-nothing"] = encode(DenseVector(OneStep(0.0, nothing)))
    for rate in (0.3, 1, 3):
        rows = Eden(rate).round_rows(torch.linspace(-1, 2, 70)[None], 5, torch.tensor([9]))
        found[f"rotated-{rate}"] = encode(DenseVector(rows.row(0)))
    for bits in (4, 7, 16):
        quantiser = Modular(sum_bits=bits, first_step=0.125).for_round(5, None, 3)
        rows = quantiser.round_rows(torch.linspace(-1, 2, 300)[None], 5, torch.tensor([9]))
        found[f"residues-{bits}"] = encode(DenseVector(rows.row(0)))
    rows = TwoBits().round_rows(torch.linspace(-1, 2, 1100)[None], 5, torch.tensor([9]))
    found["two-bits"] = encode(DenseVector(rows.row(0)))
    found["sparse-integers"] = write(sparse, Choices(Coding(4, table), GOLOMB))
    floats = SparseUpdate(300, sparse.indices, Floats(torch.arange(40).half()), 9, 4)
    found["sparse-bitmap"] = write(floats, Choices(Coding(2), BITMAP))
    found["sparse-golomb"] = write(floats, Choices(Coding(2), GOLOMB))
    found["sparse-gaps"] = write(floats, Choices(Coding(2), GAPS, best_gap_code(300, 40)))
    found["sparse-all"] = encode(SparseUpdate(3, torch.arange(3), Floats(three)))
    found["sparse-none"] = encode(SparseUpdate(3, torch.arange(0), Floats(three[:0])))
    return found


def plain(payload) -> dict:
    """A payload as the reader of the page gives it."""
    names = {
        DenseVector: "dense",
        SketchTable: "sketch",
        SparseUpdate: "sparse",
        WholeModel: "model",
    }
    found = {"kind": names[type(payload)], "round": payload.round}
    if isinstance(payload, SketchTable):
        found["kind"] = {"blocks": "sketch", "permutation": "permuted"}[payload.hash]
        found |= {name: getattr(payload, name) for name in ("dim", "rows", "cols", "block", "seed")}
    if isinstance(payload, SparseUpdate):
        found |= {"since": payload.since, "dim": payload.dim}
        found["indices"] = payload.indices.tolist()
    values = payload.values
    if isinstance(values, Floats):
        return found | {"floats": values.values.tolist()}
    if isinstance(values, EdenMessage):
        found |= {"key": values.key, "client": values.client, "scales": values.scales.tolist()}
        return found | {"codes": values.codes.flatten().tolist()}
    if isinstance(values, TwoBitMessage):
        found["magnitudes"] = values.magnitudes.flatten().tolist()
        return found | {"codes": values.codes.tolist()}
    if isinstance(values, Residues):
        found |= {"step": values.step, "weight": values.weight, "key": values.key}
        return found | {"residues": values.cells.tolist()}
    if isinstance(values, OneStep):
        found["step"] = values.step
        values = values.levels
    if isinstance(values, SparseIntegers):
        found |= {"of": values.count, "places": values.indices.tolist()}
        return found | {"integers": values.values.tolist()}
    if isinstance(values, Integers):
        return found | {"integers": values.values.tolist()}
    return found | {"bits": values.bits, "scales": values.scales.tolist(), "levels": levels(values)}


def levels(cells: Quantised) -> list[int]:
    parts = RUN // CELLS_PER_SYMBOL[cells.bits]
    symbols = cells.symbols.numpy().astype(int).reshape(-1, 1, parts)
    shifts = cells.bits * np.arange(CELLS_PER_SYMBOL[cells.bits])[:, None]
    stored = (symbols >> shifts & 2**cells.bits - 1).ravel()[: cells.count]
    return (stored - 2 ** (cells.bits - 1) + 1).tolist()
