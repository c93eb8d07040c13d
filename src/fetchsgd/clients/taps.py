"""Taps on a model's layers: one backward pass writes every client's own gradient.

A tap sits behind a layer that has weights. On the way back it hands over the slopes there, from
which the layer forms the clients' gradients of its weights, in the columns where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.clients import convolution_cuda
from fetchsgd.clients.layer_gradients import convolution, gradient_of, is_known
from fetchsgd.vector import FlatModel


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the gradients go, and what every client adds to its own."""

    gradients: Float32[Tensor, "n dim"]
    decay: Float32[Tensor, " dim"] | None


@dataclass(frozen=True, eq=False)
class Layer:
    """A module that has weights: where they are in the vector, and their shapes."""

    module: nn.Module
    places: dict[str, tuple[slice, torch.Size]]

    def write(self, rows: Rows, inputs: Tensor, slopes: Tensor) -> None:
        at = {
            name: rows.gradients[:, columns].view(-1, *shape)
            for name, (columns, shape) in self.places.items()
        }
        added = {} if rows.decay is None else self._cut(rows.decay)
        write: Any = gradient_of(self.module)
        if write is convolution and convolution_cuda.serves(inputs, slopes, at["weight"]):
            write = partial(convolution_cuda.write, decay=added.pop("weight", None))
        write(self.module, inputs, slopes, at["weight"], at.get("bias"))
        for name, term in added.items():
            at[name] += term

    def fill(self, rows: Rows) -> None:
        """As if the loss did not depend on these weights."""
        for columns, _ in self.places.values():
            rows.gradients[:, columns] = 0 if rows.decay is None else rows.decay[columns]

    def _cut(self, vector: Float32[Tensor, " dim"]) -> dict[str, Tensor]:
        return {name: vector[columns].view(shape) for name, (columns, shape) in self.places.items()}


def layers_of(model: FlatModel) -> list[Layer]:
    """All layers with trainable weights; none if one is unknown, or if two share weights."""
    ends = torch.tensor(model.sizes).cumsum(0).tolist()
    places = {
        name: (slice(end - size, end), shape)
        for name, shape, size, end in zip(model.names, model.shapes, model.sizes, ends, strict=True)
    }
    layers = []
    for prefix, module in model.module.named_modules():
        own = dict(module.named_parameters(prefix, recurse=False))
        if not any(parameter.requires_grad for parameter in own.values()):
            continue
        # A weight that is missing here is frozen, or has been met in another layer.
        if not is_known(module) or not places.keys() >= own.keys():
            return []
        layers.append(Layer(module, {name.rpartition(".")[2]: places.pop(name) for name in own}))
    return layers


class Taps:
    """Collects the clients' gradients while one backward pass runs."""

    def __init__(self, layers: list[Layer], rows: Rows) -> None:
        self.rows = rows
        self.unreached = set(layers)  # until the backward pass reaches them
        # Something that asks for a gradient, since neither weights nor inputs do.
        self.anchor = torch.zeros((), device=rows.gradients.device, requires_grad=True)

    def record(self, layer: Layer, inputs: Tensor, slopes: Tensor) -> None:
        layer.write(self.rows, inputs, slopes)
        self.unreached.discard(layer)

    def fill_unreached(self) -> None:
        for layer in self.unreached:
            layer.fill(self.rows)


class Tap(torch.autograd.Function):
    """Passes a layer's output on; on the way back, hands over the slopes there."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, inputs: Tensor, _anchor: Tensor, taps: Taps, layer: Layer
    ) -> Tensor:
        ctx.save_for_backward(inputs)  # so that autograd notices if they are overwritten
        ctx.taps, ctx.layer = taps, layer
        # A view could not be overwritten, as nn.ReLU(inplace=True) does.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        ctx.taps.record(ctx.layer, *ctx.saved_tensors, *slopes)
        return *slopes, None, None, None, None


@contextmanager
def tapped(
    layers: list[Layer], gradients: Float32[Tensor, "n dim"], decay: Float32[Tensor, " dim"] | None
) -> Iterator[Taps]:
    """While this lasts, a backward pass writes the clients' gradients, `decay` added to each."""
    taps = Taps(layers, Rows(gradients, decay))

    def tap(layer: Layer) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            apply: Any = Tap.apply
            through: Tensor = apply(output, inputs[0].detach(), taps.anchor, taps, layer)
            return through

        return layer.module.register_forward_hook(hook)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(tap(layer))
        yield taps
