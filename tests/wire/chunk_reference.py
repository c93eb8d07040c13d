"""Counts over chunks in plain torch: what the loops and programs must find, to the last one."""

import torch

from fetchsgd.wire.chunk_statistics import Statistics

SEGMENT, PAGE = 2**18, 2**16


def symbol_on_the_page(value):
    """The symbol of a value in chunks, as docs/wire.md defines it."""
    z = 2 * value if value >= 0 else -2 * value - 1
    if z < 64:
        return z
    e = z.bit_length() - 1
    return 64 + 2 * (e - 6) + (z >> e - 1 & 1)


def statistics(levels: torch.Tensor) -> Statistics:
    """Slow, one vector after another."""
    rows = [_of_one(row.long().cpu()) for row in levels]
    return Statistics(*(torch.stack(parts) for parts in zip(*rows, strict=True)))


def _of_one(levels):
    count = len(levels)
    padded = torch.nn.functional.pad(levels, (0, -count % 64))
    chunks = (padded.view(-1, 64) != 0).sum(dim=1)
    counts = torch.zeros(9, 65, dtype=torch.int64)
    nonzeros = []
    for segment in torch.split(chunks, SEGMENT // 64):
        nonzeros.append(segment.sum())
        if nonzeros[-1] == 0:
            continue
        before = torch.nn.functional.pad(segment, (4, 0))
        near = sum(before[4 - back : len(before) - back] for back in (1, 2, 3, 4))
        kinds = torch.bucketize(near, 2 ** torch.arange(8), right=True)
        counts.index_put_((kinds, segment), torch.tensor(1), accumulate=True)
    values = torch.zeros(-(-count // PAGE), 256, dtype=torch.int64)
    for value in levels.unique().tolist():
        if value:
            pages = (levels == value).nonzero().squeeze(1) // PAGE
            symbol = symbol_on_the_page(value)
            values[:, symbol] += torch.bincount(pages, minlength=len(values))
    nonzeros = torch.stack(nonzeros)
    larger = levels.abs()[(levels > 31) | (levels < -32)].sum()
    return counts.int(), values.int(), nonzeros.int(), larger
