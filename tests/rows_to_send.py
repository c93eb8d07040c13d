"""Rows such as clients send."""

import torch
from awkward import normal


def numbers(kind, n, count):
    """Rows such as clients send: normal, heavy-tailed, layers of unequal size, nearly all zero."""
    found = normal(n, count)
    if kind == "heavy":
        return found**5
    if kind == "layers":
        return found * torch.logspace(-6, 0, count)
    if kind == "spikes":
        return found * (torch.arange(count) % 997 == 3)
    return found


KINDS = ["normal", "heavy", "layers", "spikes"]
