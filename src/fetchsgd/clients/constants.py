"""Notices a model that changes its constants while it trains.

Only trainable weights go to the server and into checkpoints. What a model keeps elsewhere, as a
running mean in a buffer, would be lost at the next round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
        before = {name: State.of(tensor) for name, tensor in self.model.constants().items()}
        try:
            yield
        except RuntimeError as error:  # which may come of it, as vmap leaves unusable tensors there
            self._refuse_changes(before, error)
            raise
        self._refuse_changes(before, None)
        self.is_done = True

    def _refuse_changes(self, before: dict[str, State], error: RuntimeError | None) -> None:
        for name, tensor in self.model.constants().items():
            if name not in before or before[name].differs(tensor):
                raise UserError(
                    f"the model changes {name!r} while it trains, but only trainable parameters "
                    "reach the server, so the change would be lost; compute it anew in each pass, "
                    "or register it as a buffer with persistent=False if it is only a cache"
                ) from error


@dataclass(frozen=True)
class State:
    """A tensor as it was: parameters may be large, and are not copied."""

    tensor: Tensor
    version: int
    copy: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> State:
        is_parameter = isinstance(tensor, nn.Parameter)
        return cls(tensor, tensor._version, None if is_parameter else tensor.clone())

    def differs(self, tensor: Tensor) -> bool:
        if tensor is self.tensor and tensor._version == self.version:
            return False  # known without reading it, so without waiting for a device
        try:
            return self.copy is None or not torch.equal(tensor, self.copy)
        except RuntimeError:  # a tensor of vmap's
            return True
