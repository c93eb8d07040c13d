"""Three ways to run the same sketch, behind one interface.

reference.py   plain torch, any device; the definition, and the oracle of the tests
cpu.py         numba, all cores
cuda.py        Triton
selection.py   top-k for the last two, without a dim-sized buffer
permuted/      the same three for the hash without tables
"""

from __future__ import annotations

import importlib.util
import warnings
from functools import lru_cache
from typing import Literal, Protocol

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels.permuted.reference import PermutedReference
from fetchsgd.sketch.kernels.reference import ReferenceKernels
from fetchsgd.sketch.permutation import Permutation

KernelName = Literal["auto", "reference", "numba", "triton"]
KERNEL_NAMES = ("auto", "reference", "numba", "triton")


class Kernels(Protocol):
    """What a CountSketch asks of a device. Inputs have been checked."""

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        """Of vectors that are zero but for the pieces, which begin at coordinate `first`."""
        ...

    def add(
        self, table: Float32[Tensor, "rows cols"], piece: Float[Tensor, "1 _"], first: int
    ) -> None:
        """Add the sketch of one piece to a table, in place and without another table."""
        ...

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]: ...

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]: ...

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]: ...

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        """Of all coordinates, or of those in the span, which is not empty."""
        ...

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]: ...

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]: ...

    def row_energy(self, table: Float32[Tensor, "rows cols"]) -> Float64[Tensor, " rows"]: ...


def make_kernels(name: KernelName, hash: BlockHash | Permutation, device: torch.device) -> Kernels:
    """The kernels of that name, or with "auto" the fastest that this machine can run."""
    fast = {"cpu": "numba", "cuda": "triton"}.get(device.type)
    if name == "auto":
        if fast is not None and _missing(fast):
            _warn_slow(fast)
            fast = None
        name = "numba" if fast == "numba" else "triton" if fast else "reference"
    elif name not in ("reference", fast):
        raise ValueError(f"kernel={name!r} cannot run on {device}; use 'auto' or 'reference'")
    elif name != "reference" and _missing(name):
        raise ValueError(f"kernel={name!r} needs the package {name}, which is not installed")
    if isinstance(hash, Permutation):
        return _permuted(name, hash, device)
    return _by_blocks(name, hash, device)


# Imported where they are needed: numba and triton take longer than the rest of the package.


def _by_blocks(name: KernelName, hash: BlockHash, device: torch.device) -> Kernels:
    if name == "reference":
        return ReferenceKernels(hash, device)
    if name == "numba":
        from fetchsgd.sketch.kernels.cpu import NumbaKernels

        return NumbaKernels(hash)
    from fetchsgd.sketch.kernels.cuda import TritonKernels

    return TritonKernels(hash, device)


def _permuted(name: KernelName, hash: Permutation, device: torch.device) -> Kernels:
    if name == "reference":
        return PermutedReference(hash, device)
    if name == "numba":
        from fetchsgd.sketch.kernels.permuted.cpu import PermutedNumba

        return PermutedNumba(hash)
    from fetchsgd.sketch.kernels.permuted.cuda import PermutedTriton

    return PermutedTriton(hash, device)


def _missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


@lru_cache
def _warn_slow(package: str) -> None:
    warnings.warn(
        f"{package} is not installed, so sketches run in plain torch, many times slower; "
        f"'pip install {package}' speeds them up",
        stacklevel=2,
    )
