"""Notices a model that changes its constants while it trains.

Only trainable weights go to the server and into checkpoints. What a model keeps elsewhere, as a
running mean in a buffer, would be lost at the next round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fetchsgd.errors import UserError
from fetchsgd.vector import FlatModel


class ConstantsCheck:
    """Compares the model's constants before and after its first training pass."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.is_done = False

    @contextmanager
    def around_pass(self) -> Iterator[None]:
        if self.is_done:
            yield
            return
        before = {
            name: (tensor, tensor._version, tensor.clone())
            for name, tensor in self.model.constants().items()
        }
        yield
        self.is_done = True
        for name, tensor in self.model.constants().items():
            old, version, copy = before.get(name, (None, 0, None))
            if tensor is old and tensor._version == version:
                continue  # nothing has written to it, which is known without reading it
            if copy is None or not torch.equal(tensor, copy):
                raise UserError(
                    f"the model changes {name!r} while it trains, but only trainable parameters "
                    "reach the server, so the change would be lost; compute it anew in each pass, "
                    "or register it as a buffer with persistent=False if it is only a cache"
                )
