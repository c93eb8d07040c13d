"""How many steps the permutation of docs/hash.md needs: the table on that page.

    python benchmarks/mixing.py

If blocks t and t + e of one group meet blocks u and v of another, how often does v - u repeat over
all t? The mean square of these counts is 2 for random permutations, and q for rotations alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fetchsgd.sketch.permutation import Permutation, half_mix, mix

SEED = 11
SIZES = {64: 200, 1000: 200, 20_000: 20}  # q, and how many groups


def columns(q: int, groups: int, steps: int) -> Tensor:
    """Columns of blocks 0 to q - 1 of each group, with the first `steps` of the three."""
    hash = Permutation(q * groups, 1, q, 1, SEED)
    k0, k1, k2, k3 = hash.keys
    first = mix(torch.arange(groups) + k0)[:, None]
    second = mix(first + k1)
    t = (torch.arange(q) + (first * q >> 32)) % q
    high, low = t >> hash.low_bits, t & ((1 << hash.low_bits) - 1)
    if steps >= 1:
        low = low ^ half_mix(high, first ^ k2) >> (32 - hash.low_bits)
    if steps >= 2:
        high = (high + (half_mix(low, second ^ k2) * hash.highs >> 32)) % hash.highs
    if steps >= 3:
        low = low ^ half_mix(high, first ^ k3) >> (32 - hash.low_bits)
    t = torch.where(t < hash.highs << hash.low_bits, high << hash.low_bits | low, t)
    return (t + (second * q >> 32)) % q


def repeats(placed: Tensor, distance: int) -> float:
    """The mean square above, over pairs of groups."""
    ours, theirs = placed.chunk(2)
    q = placed.shape[1]
    partner = theirs.argsort(dim=1).gather(1, ours)
    apart = (partner.roll(-distance, 1) - partner) % q
    counts = torch.zeros(apart.shape).scatter_add_(1, apart, torch.ones(apart.shape))
    return float(counts.square().sum(dim=1).mean() / q)


def main() -> None:
    generator = torch.Generator().manual_seed(SEED)
    print("| q | e | rotations alone | one step | two | three, as above | random |")
    print("|---|---|---|---|---|---|---|")
    for q, groups in SIZES.items():
        placed = [columns(q, groups, steps) for steps in range(4)]
        placed.append(torch.stack([torch.randperm(q, generator=generator) for _ in range(groups)]))
        for distance in (1, 16):
            found = [f"{repeats(each, distance):.2f}" for each in placed]
            print(f"| {q} | {distance} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
