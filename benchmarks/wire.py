"""Speed and tightness of the wire format: quantising, entropy coders, and positions.

    python benchmarks/wire.py --device cpu  --out benchmarks/results/wire-cpu.json
    python benchmarks/wire.py --device cuda --out benchmarks/results/wire-cuda.json

On a CPU, rates are of one core for cells and chunks, and of all threads for positions. As
everywhere, smaller ratios are better: a rate is given as the floor that we set ourselves over the
measured one, a size as what was written over the least that is possible. On a GPU only cells and
counts over chunks are handled: there the measure is the time to copy them.
"""

from __future__ import annotations

import argparse
from functools import partial
from math import lgamma, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment, medians, report

from fetchsgd.quantisers import SharedStep, Step
from fetchsgd.quantisers.level_layout import BITS, CELLS_PER_SYMBOL
from fetchsgd.quantisers.level_section import cell_counts, product_frequencies
from fetchsgd.quantisers.level_sizes import CELL_TOTAL
from fetchsgd.quantisers.levels import quantise_rows
from fetchsgd.wire import Floats, Reader, SparseIntegers, SparseUpdate, positions, rans
from fetchsgd.wire.choices import Choices, choose
from fetchsgd.wire.chunk_sizes import sparse_bytes
from fetchsgd.wire.chunk_statistics import chunk_statistics
from fetchsgd.wire.chunks import read_sparse
from fetchsgd.wire.rans import normalise
from fetchsgd.wire.segments import SEGMENT, spans

SYMBOLS = 32 * SEGMENT
SYMBOL_FLOOR = 200e6
CELL_BYTES_FLOOR = 1e9  # of float32
ROWS, CELLS = 4, 4_000_000
DIM = 6_500_000
DENSITIES = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5]
INDEX_FLOOR = 100e6
Row = dict[str, Any]


def quantising_cpu(repeats: int) -> list[Row]:
    """On one thread, as rates of float32 that goes in or comes out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = medians(_cell_work("cpu"), "cpu", repeats)
    finally:
        torch.set_num_threads(threads)
    return [
        {
            "what": f"{what} on one core, float32",
            "measured": f"{4 * ROWS * CELLS / taken / 1e9:.1f} GB/s",
            "ratio": CELL_BYTES_FLOOR * taken / (4 * ROWS * CELLS),
            "target": 1.0,
        }
        for what, taken in seconds.items()
        if what != "copy"
    ]


def quantising_cuda(repeats: int) -> list[Row]:
    """As multiples of copying the cells once."""
    seconds = medians(_cell_work("cuda", rows=40), "cuda", repeats)
    return [
        {
            "what": what,
            "measured": f"{taken * 1e3:.3f} ms",
            "ratio": taken / seconds["copy"],
            "target": None if what == "copy" else 1.0,
        }
        for what, taken in seconds.items()
    ]


def _cell_work(device: str, rows: int = ROWS) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    cells = torch.randn(rows, CELLS, generator=generator, device=device)
    streams = torch.arange(rows, device=device)
    weights = torch.full((rows,), 1 / rows, device=device)
    work: dict[str, Any] = {"copy": cells.clone}
    for bits in BITS:
        sent = quantise_rows(cells, bits, 1, streams)
        work[f"quantise and pack, {bits} bits"] = partial(quantise_rows, cells, bits, 1, streams)
        work[f"weighted sum of {bits} bits"] = partial(sent.weighted_sum, weights)
        work[f"histograms of {bits} bits"] = sent.histograms
    size = float(cells.abs().mean())
    steps = {"a step of its own": Step(tau=8.0), "one step for all": SharedStep().for_size(size)}
    for name, quantiser in steps.items():
        rounded = quantiser.round_rows(cells, 1, streams)
        work[f"round to {name}"] = partial(quantiser.round_rows, cells, 1, streams)
        work[f"weighted sum of levels of {name}"] = partial(rounded.weighted_sum, weights)
    return work


def ternary(rng: np.random.Generator) -> np.ndarray:
    """Levels -1, 0, 1 of which 14 % are not zero, as 0, 1, 2."""
    return rng.choice(3, size=(4, SYMBOLS), p=[0.07, 0.86, 0.07])


def gaussian(rng: np.random.Generator) -> np.ndarray:
    """Normal cells under a scale of 2.8 standard deviations, the largest of 256, in 4 bits."""
    return np.clip(np.rint(rng.normal(size=(2, SYMBOLS)) * 7 / 2.8), -7, 7).astype(np.int64) + 7


def entropy_coder(name: str, levels: np.ndarray, bits: int, repeats: int) -> list[Row]:
    assert len(levels) == CELLS_PER_SYMBOL[bits]
    symbols = sum(part << bits * i for i, part in enumerate(levels)).astype(np.uint8)
    counts = rans.histogram(symbols)
    cells = normalise(cell_counts(counts, bits), CELL_TOTAL)
    model = rans.Model(product_frequencies(cells, bits))
    parts = [symbols[slice(*span)] for span in spans(len(symbols))]
    coded = [rans.encode(part, model) for part in parts]
    out = np.empty(SEGMENT, dtype=np.uint8)

    def encode() -> None:
        for part in parts:
            rans.encode(part, model)

    def decode() -> None:
        for data in coded:
            rans.decode_into(out, memoryview(data), model)

    seconds = medians({"encode": encode, "decode": decode}, "cpu", repeats)
    share = counts[counts > 0] / len(symbols)
    least = -len(symbols) * float((share * np.log2(share)).sum()) / 8
    return [
        {
            "what": f"{name}: {what} on one core, million symbols a second",
            "measured": f"{len(symbols) / taken / 1e6:.0f} M/s",
            "ratio": SYMBOL_FLOOR / (len(symbols) / taken),
            "target": 1.0,
        }
        for what, taken in seconds.items()
    ] + [_size(f"{name}: bytes over entropy", sum(map(len, coded)), least, 1.01)]


def independent(rng: np.random.Generator) -> np.ndarray:
    """3 % not zero, anywhere."""
    return (rng.random(DIM) < 0.03) * rng.choice([-2, -1, 1, 2], DIM)


def channels(rng: np.random.Generator) -> np.ndarray:
    """3 % not zero, of which a channel has few or many, as in gradients of convolutions."""
    shape = 1000, DIM // 1000
    density = 0.03 * rng.exponential(size=(shape[0], 1)) * rng.exponential(size=(1, shape[1]))
    return ((rng.random(shape) < density) * rng.choice([-2, -1, 1, 2], shape)).ravel()


def chunks(name: str, levels: np.ndarray, repeats: int) -> list[Row]:
    """Levels to sparse integers to bytes and back on one core, as rates of float32."""
    dense = torch.from_numpy(levels.astype(np.int8))
    sent = SparseIntegers.from_dense(dense)
    data = sent.write(sent.coding())

    def encode() -> None:
        values = SparseIntegers.from_dense(dense)
        values.write(values.coding())

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = medians(
            {
                "encode": encode,
                "decode": lambda: read_sparse(Reader(memoryview(data)), len(levels)),
                "predict the size": lambda: sparse_bytes(chunk_statistics(dense[None])),
            },
            "cpu",
            repeats,
        )
    finally:
        torch.set_num_threads(threads)
    _, counts = np.unique(levels, return_counts=True)
    least = -float((counts * np.log2(counts / len(levels))).sum()) / 8
    return [
        {
            "what": f"chunks, {name}: {what} on one core, float32",
            "measured": f"{4 * len(levels) / taken / 1e9:.1f} GB/s",
            "ratio": CELL_BYTES_FLOOR * taken / (4 * len(levels)),
            "target": 1.0,
        }
        for what, taken in seconds.items()
    ] + [_size(f"chunks, {name}: bytes over entropy", len(data), least, 1.01)]


def chunks_cuda(repeats: int) -> list[Row]:
    """Counting over the levels of 40 clients, as a multiple of copying them once."""
    generator = torch.Generator("cuda").manual_seed(0)
    draws = torch.randn(40, DIM, generator=generator, device="cuda")
    levels = (draws / 2.1).trunc().to(torch.int8)
    found = chunk_statistics(levels)
    work = {
        "copy levels of 8 bits": levels.clone,
        "count chunks and values": lambda: chunk_statistics(levels),
        "sizes from the counts": lambda: sparse_bytes(found),
    }
    seconds = medians(work, "cuda", repeats)
    copied = seconds["copy levels of 8 bits"]
    return [
        {"what": what, "measured": f"{s * 1e3:.3f} ms", "ratio": s / copied, "target": None}
        for what, s in seconds.items()
    ]


def position_codes(density: float, repeats: int) -> list[Row]:
    rng = np.random.default_rng(0)
    count = int(DIM * density)
    indices = np.sort(rng.choice(DIM, count, replace=False))
    choices = _choices(indices)
    data = positions.write(indices, DIM, choices.positions, choices.gap_code)

    def decode() -> None:
        positions.read(Reader(memoryview(data)), DIM, count, choices.positions)

    seconds = medians({"decode": decode}, "cpu", repeats)["decode"]
    least = (lgamma(DIM + 1) - lgamma(count + 1) - lgamma(DIM - count + 1)) / log(2) / 8
    name = f"positions, density {density:g}"
    # Below a segment an index costs mostly the calls around it.
    floor = INDEX_FLOOR / (count / seconds) if count >= SEGMENT else None
    return [
        _size(f"{name}: bytes over log2 C(dim, count)", len(data), least, 1.03 + 8 / least),
        {
            "what": f"{name}: decode, million indices a second",
            "measured": f"{count / seconds / 1e6:.0f} M/s",
            "ratio": floor,
            "target": None if floor is None else 1.0,
        },
    ]


def _choices(indices: np.ndarray) -> Choices:
    values = Floats(torch.zeros(len(indices)))
    return choose(SparseUpdate(DIM, torch.from_numpy(indices), values))


def _size(what: str, size: int, least: float, target: float) -> Row:
    return {"what": what, "measured": f"{size} B", "ratio": size / least, "target": target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda":
        rows = quantising_cuda(options.repeats) + chunks_cuda(options.repeats)
        report(rows, environment("cuda"), options.out)
        return
    rng = np.random.default_rng(0)
    rows = quantising_cpu(options.repeats)
    rows += entropy_coder("ternary, 14 % not zero", ternary(rng), 2, options.repeats)
    rows += entropy_coder("4 bits, Gaussian", gaussian(rng), 4, options.repeats)
    rows += chunks("3 % not zero", independent(rng), options.repeats)
    rows += chunks("3 %, by channels", channels(rng), options.repeats)
    for density in DENSITIES:
        rows += position_codes(density, options.repeats)
    report(rows, environment("cpu"), options.out)


if __name__ == "__main__":
    main()
