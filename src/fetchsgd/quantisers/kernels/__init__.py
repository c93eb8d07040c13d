"""Three implementations of random rounding, bit-identical.

reference.py   plain torch, any device; the definition, and the oracle of the tests
cpu.py         numba, all cores
cuda.py        Triton
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Protocol

import torch
from jaxtyping import Float32, Int, Int32, Int64, UInt8
from torch import Tensor


class Kernels(Protocol):
    """What levels.py and steps.py ask of a device. Inputs are checked, and cells contiguous."""

    def quantise(
        self, cells: Float32[Tensor, "n count"], bits: int, key: int, streams: Int64[Tensor, " n"]
    ) -> tuple[Float32[Tensor, "n runs"], UInt8[Tensor, "n symbols"]]: ...

    def weighted_sum(
        self,
        scales: Float32[Tensor, "n runs"],
        symbols: UInt8[Tensor, "n symbols"],
        bits: int,
        count: int,
        weights: Float32[Tensor, " n"],
    ) -> Float32[Tensor, " count"]: ...

    def histograms(self, symbols: UInt8[Tensor, "n symbols"]) -> Int64[Tensor, "n 256"]: ...

    def round_to_bfloat16(
        self, cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
    ) -> Float32[Tensor, "n count"]: ...

    def add_squares(
        self, cells: Float32[Tensor, "n count"]
    ) -> tuple[Int64[Tensor, "n chunks"], Int32[Tensor, "n chunks"]]: ...

    def round_places(
        self,
        cells: Float32[Tensor, "n count"],
        steps: Float32[Tensor, " n"],
        dtype: torch.dtype,
        key: int,
        streams: Int64[Tensor, " n"],
    ) -> Int[Tensor, "n count"]: ...

    def sum_levels(
        self, levels: Int[Tensor, "n count"], steps: Float32[Tensor, " n"]
    ) -> Float32[Tensor, " count"]: ...


def kernels_for(device: torch.device) -> Kernels:
    """The fastest kernels that can run there."""
    return _kernels(device.type)


@lru_cache
def _kernels(device_type: str) -> Kernels:
    # Imported here because numba and triton take longer to import than the rest of the package.
    if device_type == "cpu" and importlib.util.find_spec("numba"):
        from fetchsgd.quantisers.kernels import cpu

        return cpu
    if device_type == "cuda" and importlib.util.find_spec("triton"):
        from fetchsgd.quantisers.kernels import cuda

        return cuda
    from fetchsgd.quantisers.kernels import reference

    return reference
