"""What is kept between steps for each parameter, as one vector for each bucket.

DDP makes new buckets after the first step: in another order, and of other sizes. So what is kept
belongs to parameters, by name. A bucket's part of it is one vector nonetheless, of which those of
its parameters are views; when parameters come in another bucket, they are copied into a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fetchsgd.methods.base import State

Kept = dict[str, dict[str, Tensor]]  # name of a parameter -> field -> flat tensor


class Memory:
    """fields: what is kept, and whether it is a number for each weight or one for a tensor."""

    def __init__(self, fields: Mapping[str, bool]) -> None:
        self.fields = dict(fields)
        self.kept: Kept = {}
        self._buckets: dict[tuple[str, ...], State] = {}

    def has_all(self, names: Sequence[str]) -> bool:
        """Whether all of them have been compressed before."""
        return tuple(names) in self._buckets or all(name in self.kept for name in names)

    def bucket(self, names: Sequence[str], sizes: Sequence[int], device: torch.device) -> State:
        """The vectors of some parameters that are in one bucket; to be changed in place."""
        key = tuple(names)
        if key not in self._buckets:
            self._join(key, sizes, device)
        return self._buckets[key]

    def _join(self, key: tuple[str, ...], sizes: Sequence[int], device: torch.device) -> None:
        # What held these parameters until now is no longer in use.
        for other in [other for other in self._buckets if not set(key).isdisjoint(other)]:
            del self._buckets[other]
        found: list[dict[str, Tensor]] = [{} for _ in key]
        state: State = {}
        for field, is_per_weight in self.fields.items():
            lengths = [size if is_per_weight else 1 for size in sizes]
            before = [
                self.kept[name][field].to(device)
                if name in self.kept
                else torch.zeros(length, device=device)
                for name, length in zip(key, lengths, strict=True)
            ]
            state[field] = torch.cat(before)
            for part, view in zip(found, torch.split(state[field], lengths), strict=True):
                part[field] = view
        self.kept |= dict(zip(key, found, strict=True))
        self._buckets[key] = state

    def copies(self) -> Kept:
        """Of all that is kept, in order of names, for a checkpoint."""
        return {
            name: {field: tensor.clone() for field, tensor in self.kept[name].items()}
            for name in sorted(self.kept)
        }

    def replace(self, kept: Kept) -> None:
        """By what a checkpoint holds."""
        self._buckets.clear()
        self.kept = {
            name: {field: tensor.detach().float().clone() for field, tensor in fields.items()}
            for name, fields in kept.items()
        }
