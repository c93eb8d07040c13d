"""What a Count Sketch does for a federation, in one screen.

A hundred clients each hold a noisy vector of a million coordinates, with fifty large ones in
common. Each sends a sketch that is twenty times smaller. The server adds the sketches up, and reads
the fifty coordinates out of the sum, without ever seeing a whole vector.
"""

from __future__ import annotations

import time

import torch

from fetchsgd import CountSketch

DIM, CLIENTS, COHORT, HEAVY = 1_000_000, 100, 10, 50


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    signal = torch.zeros(DIM)
    heavy = torch.randperm(DIM, generator=generator)[:HEAVY].sort().values
    signal[heavy] = 8.0 * torch.randn(HEAVY, generator=generator).sign()

    sketch = CountSketch(DIM, rows=5, cols=10_000)
    merged = sketch.zeros()
    start = time.perf_counter()
    for _ in range(CLIENTS // COHORT):
        vectors = signal + torch.randn(COHORT, DIM, generator=generator)
        merged += sketch.sketch(vectors).sum(dim=0) / CLIENTS
    update = sketch.top_k(merged, HEAVY)
    seconds = time.perf_counter() - start

    found = int(torch.isin(heavy, update.indices).sum())
    error = (update.to_dense() - signal)[update.indices].abs().mean()
    print(f"{CLIENTS} clients, vectors of {DIM:,} numbers, {4 * DIM / 1e6:g} MB each")
    print(
        f"sketch: {sketch.rows} x {sketch.cols:,} cells, {4 * sketch.num_cells / 1e3:g} kB each,",
        end=" ",
    )
    print(f"{DIM / sketch.num_cells:g} times smaller")
    print(f"found {found} of {HEAVY} large coordinates in {seconds:.1f} s;", end=" ")
    print(f"their values, all ±8, are off by {error:.2f} on average\n")
    for index, value in list(zip(update.indices.tolist(), update.values.tolist(), strict=True))[:8]:
        bar = "█" * round(4 * abs(value))
        print(f"  {index:>8,}  {value:>+6.2f}  {bar}")
    print(f"  {'...':>8}")


if __name__ == "__main__":
    main()
