"""Three implementations of the rotation, bit-identical.

reference.py   plain torch, any device; the definition, and the oracle of the tests
cpu.py         numba, all cores
cuda.py        Triton

All add in the same order: the butterflies of neighbouring rows first, then of rows that are 2, 4,
8, ... apart; a butterfly turns a and b into a + b and a - b; the scale comes last.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Protocol

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.sums.layout import Layout


class Kernels(Protocol):
    """What rotation.py asks of a device. Rows are contiguous; outputs are new."""

    def words(
        self, stream: int, count: int, key: int, device: torch.device
    ) -> Int32[Tensor, " words"]: ...

    def rotate(
        self, rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
    ) -> Float32[Tensor, "n cells"]: ...

    def rotate_back(
        self, rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
    ) -> Float32[Tensor, "n count"]: ...


def kernels_for(device: torch.device) -> Kernels:
    """The fastest kernels that can run there."""
    return _kernels(device.type)


@lru_cache
def _kernels(device_type: str) -> Kernels:
    # Imported here because numba and triton take longer to import than the rest of the package.
    if device_type == "cpu" and importlib.util.find_spec("numba"):
        from fetchsgd.sums.kernels import cpu

        return cpu
    if device_type == "cuda" and importlib.util.find_spec("triton"):
        from fetchsgd.sums.kernels import cuda

        return cuda
    from fetchsgd.sums.kernels import reference

    return reference
