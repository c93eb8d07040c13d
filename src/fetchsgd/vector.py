"""Vectors: a model's trainable weights as one, and the sparse ones that the server sends back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.trees import Tree, call

# Without its sign, a float32's bits are an integer that orders as the magnitude does, with infinity
# next to last and every NaN behind it.
MAGNITUDE_BITS = 0x7FFFFFFF
FIRST_NAN = 0x7F800001


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A vector of length `dim` that is zero outside `indices`, which are sorted and distinct.

    >>> SparseVector(4, torch.tensor([1, 3]), torch.tensor([0.5, -2.0])).to_dense()
    tensor([ 0.0000,  0.5000,  0.0000, -2.0000])
    """

    dim: int
    indices: Int64[Tensor, " nnz"]
    values: Float32[Tensor, " nnz"]

    def __post_init__(self) -> None:
        _check_layout(self.indices, self.values)
        if not len(self.indices):
            return
        steps = self.indices.diff()
        if len(steps) and int(steps.min()) <= 0:
            raise ValueError("indices must be sorted and distinct; use SparseVector.sorted(...)")
        if not 0 <= int(self.indices[0]) <= int(self.indices[-1]) < self.dim:
            raise ValueError(
                f"indices must lie in [0, {self.dim}), "
                f"got {int(self.indices[0])} to {int(self.indices[-1])}"
            )

    @classmethod
    def trusted(
        cls, dim: int, indices: Int64[Tensor, " nnz"], values: Float32[Tensor, " nnz"]
    ) -> SparseVector:
        """Without the checks, which read the indices and so would wait for the device."""
        vector = object.__new__(cls)
        for name, value in (("dim", dim), ("indices", indices), ("values", values)):
            object.__setattr__(vector, name, value)
        return vector

    @classmethod
    def sorted(cls, dim: int, indices: Tensor, values: Tensor) -> SparseVector:
        """From indices in any order."""
        _check_layout(indices, values)
        order = indices.argsort()
        return cls(dim, indices[order], values[order])

    @classmethod
    def from_dense(cls, vector: Float[Tensor, " dim"]) -> SparseVector:
        """The nonzero coordinates of a vector."""
        indices = vector.nonzero().squeeze(1)
        return cls.trusted(len(vector), indices, vector[indices].float())

    def to_dense(self) -> Float32[Tensor, " dim"]:
        dense = torch.zeros(self.dim, dtype=torch.float32, device=self.values.device)
        dense[self.indices] = self.values
        return dense

    def to(self, device: torch.device | str) -> SparseVector:
        return SparseVector.trusted(self.dim, self.indices.to(device), self.values.to(device))

    def __len__(self) -> int:
        """The number of stored coordinates."""
        return len(self.indices)

    def __add__(self, other: SparseVector) -> SparseVector:
        if other.dim != self.dim:
            raise ValueError(f"cannot add vectors of length {self.dim} and {other.dim}")
        indices, slots = torch.unique(torch.cat([self.indices, other.indices]), return_inverse=True)
        values = torch.zeros(len(indices), dtype=torch.float32, device=indices.device)
        # At most two terms meet in a slot, so their order does not matter.
        values.index_add_(0, slots, torch.cat([self.values, other.values]))
        return SparseVector.trusted(self.dim, indices, values)

    def __neg__(self) -> SparseVector:
        return SparseVector.trusted(self.dim, self.indices, -self.values)

    def __sub__(self, other: SparseVector) -> SparseVector:
        return self + -other

    def __mul__(self, factor: float) -> SparseVector:
        return SparseVector.trusted(self.dim, self.indices, self.values * factor)

    __rmul__ = __mul__


def _check_layout(indices: Tensor, values: Tensor) -> None:
    if indices.shape != values.shape or indices.ndim != 1:
        raise ValueError(
            "indices and values must be one-dimensional and of equal length, "
            f"got shapes {tuple(indices.shape)} and {tuple(values.shape)}"
        )
    if indices.dtype != torch.int64 or values.dtype != torch.float32:
        raise TypeError(
            f"indices must be int64 and values float32, got {indices.dtype} and {values.dtype}"
        )
    if indices.device != values.device:
        raise ValueError(f"indices are on {indices.device}, but values on {values.device}")


class FlatModel:
    """A model as a function of one flat vector of its trainable weights, in their order.

    Parameters that are frozen (`requires_grad=False`) and buffers are constants: they are neither
    trained nor sent. Parameters that several modules share count once.
    """

    def __init__(self, module: nn.Module) -> None:
        check_norms(module)
        self.module = module
        trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        check_parameters(trainable)
        self.names = list(trainable)
        self.shapes = [parameter.shape for parameter in trainable.values()]
        self.sizes = [parameter.numel() for parameter in trainable.values()]
        self.dim = sum(self.sizes)
        self.slots = slots_of(module, trainable)

    def weights(self) -> Float32[Tensor, " dim"]:
        """The module's own weights, w^0 (Algorithm 1, line 2), as a copy."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().float().flatten() for name in self.names])

    def views(self, weights: Float[Tensor, " dim"]) -> list[Tensor]:
        """The weights cut into the shapes of the parameters, sharing memory."""
        parts = torch.split(weights, self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @torch.no_grad()
    def put_weights(self, weights: Float[Tensor, " dim"]) -> None:
        """Into the parameters of the module itself, in their own types."""
        parameters = dict(self.module.named_parameters())
        for name, view in zip(self.names, self.views(weights), strict=True):
            parameters[name].copy_(view)

    def copy_with(self, weights: Float[Tensor, " dim"]) -> nn.Module:
        """A copy of the module, on the CPU, that holds these weights."""
        copy = FlatModel(deepcopy(self.module).cpu())
        copy.put_weights(weights)
        return copy.module

    def constants(self) -> dict[str, Tensor]:
        """What the model keeps but does not train: frozen parameters and persistent buffers."""
        trained = set(self.names)
        found: dict[str, Tensor] = {
            n: p for n, p in self.module.named_parameters() if n not in trained
        }
        for prefix, part in self.module.named_modules():
            for name, buffer in part.named_buffers(recurse=False):
                if name not in part._non_persistent_buffers_set:
                    found[f"{prefix}.{name}" if prefix else name] = buffer
        return found

    def __call__(self, parameters: list[Tensor], inputs: Tree) -> Tree:
        with self.holding(parameters):
            return call(self.module, inputs)

    @contextmanager
    def holding(self, parameters: list[Tensor]) -> Iterator[None]:
        """While this lasts, the module has these tensors in the place of its own parameters.

        As torch.func.functional_call does, which leaves them there if a module has two names.
        """
        own = [slots[0][0][slots[0][1]] for slots in self.slots]
        try:
            self._put(parameters)
            yield
        finally:
            self._put(own)

    def _put(self, tensors: list[Any]) -> None:
        for slots, tensor in zip(self.slots, tensors, strict=True):
            for holder, name in slots:
                holder[name] = tensor


Slot = tuple[dict[str, Any], str]  # where a module keeps a parameter, and under which name


def slots_of(module: nn.Module, trainable: dict[str, nn.Parameter]) -> list[list[Slot]]:
    """All places in which each parameter is kept: more than one where weights are tied."""
    found: dict[nn.Parameter, list[Slot]] = {part: [] for part in trainable.values()}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter in found:
                found[parameter].append((part._parameters, name))
    return list(found.values())


def check_parameters(trainable: dict[str, nn.Parameter]) -> None:
    """Refuse a model that has nothing to train, or numbers that no method can send."""
    if not trainable:
        raise UserError(
            "the model has no trainable parameters; at least one must have requires_grad=True"
        )
    for name, parameter in trainable.items():
        if parameter.is_complex():
            raise UserError(
                f"the model's parameter {name!r} is {parameter.dtype}; weights must be real, "
                "so keep its real and imaginary parts as two parameters"
            )


def check_norms(module: nn.Module) -> None:
    """Refuse layers that collect statistics of the data, or that mix the examples of clients.

    In eval mode, in which a task may hand a layer over, its statistics are constants.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        where = f"the model's module {name!r} ({kind})" if name else f"the model ({kind})"
        is_batch_norm = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if not is_batch_norm and not isinstance(part, nn.modules.instancenorm._InstanceNorm):
            continue
        if part.track_running_stats and part.training:
            instead = (
                "put it in eval mode if its statistics are to stay as they are"
                if is_batch_norm
                else "set track_running_stats=False"
            )
            raise UserError(
                f"{where} has running statistics, which are neither trained nor sent; use "
                f"GroupNorm or LayerNorm, or {instead}"
            )
        if is_batch_norm and not part.track_running_stats:
            raise UserError(
                f"{where} normalises all examples of a batch together, but examples of different "
                "clients may share a batch; use GroupNorm or LayerNorm"
            )
