"""For models that compute their loss themselves, as those of Hugging Face do when given labels.

Such a loss is the mean over a batch, and a batch may hold examples of several clients, or examples
that only fill it up. So each example is given to the model by itself.

    Task(..., model=lambda: EachExample(AutoModelForSequenceClassification.from_config(config)),
         loss=own_loss, quality=lambda outputs, labels: outputs["logits"].argmax(1) == labels)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.trees import at, first_leaf


class EachExample(nn.Module):
    """Calls a module for one example after another, and returns a dict of what it gave.

    A number, such as the loss, becomes one per example, and so does the first of a tuple, which is
    taken for the loss; tensors with one row become as many rows.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> dict[str, Tensor]:
        count = len(first_leaf((inputs, named)))
        found = [self._one(*at((inputs, named), slice(i, i + 1))) for i in range(count)]
        return {name: self._joined([one[name] for one in found]) for name in found[0]}

    def _one(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Tensor]:
        parts = _named_parts(self.module(*inputs, **named))
        tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
        loss = tensors.get("loss")
        if loss is None or loss.numel() != 1:
            what = "none" if loss is None else f"one of shape {tuple(loss.shape)}"
            raise UserError(
                "a model in EachExample must return its loss, one number, as `loss`, as the first "
                f"of a tuple, or by itself, got {what}; were labels among its inputs?"
            )
        return tensors | {"loss": loss.reshape(())}

    @staticmethod
    def _joined(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts) if parts[0].ndim == 0 else torch.cat(parts)


def own_loss(outputs: dict[str, Tensor], targets: Any) -> Tensor:  # noqa: ARG001
    """The losses that a model in `EachExample` computed; as `Task.loss`."""
    return outputs["loss"]


def _named_parts(outputs: Any) -> Mapping[str, Any]:
    if isinstance(outputs, Mapping):
        return outputs
    if is_dataclass(outputs):
        return {part.name: getattr(outputs, part.name) for part in fields(outputs)}
    if isinstance(outputs, tuple):
        return {"loss" if i == 0 else str(i): part for i, part in enumerate(outputs)}
    return {"loss": outputs}
