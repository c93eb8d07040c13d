"""Vectors: a model's weights as one, and the sparse ones that the server sends back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn
from torch.func import functional_call


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
    """A model as a function of one flat vector of weights, in the order of its parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.dim = sum(self.sizes)

    def weights(self) -> Float32[Tensor, " dim"]:
        """The module's own weights, w^0 (Algorithm 1, line 2), as a copy."""
        return torch.cat([p.detach().float().flatten() for p in self.module.parameters()])

    def views(self, weights: Float[Tensor, " dim"]) -> list[Tensor]:
        """The weights cut into the shapes of the parameters, sharing memory."""
        parts = torch.split(weights, self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def __call__(self, parameters: list[Tensor], inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, parameters, strict=True))
        outputs: Tensor = functional_call(self.module, named, (inputs,))
        return outputs
