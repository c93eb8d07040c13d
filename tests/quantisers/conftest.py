"""Kernels of every device, for tests that all of them must pass."""

import pytest
import torch

from fetchsgd.quantisers.kernels import reference

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)
KERNELS = [
    "numba",
    pytest.param("interpreted", marks=interpreted),
    pytest.param("triton", marks=pytest.mark.gpu),
    pytest.param("reference", marks=pytest.mark.gpu),
]


@pytest.fixture(params=KERNELS)
def ours(request):
    """Kernels on the device they are for, with inputs and outputs in main memory."""
    if request.param == "reference":
        return OnGpu(reference)
    if request.param == "numba":
        from fetchsgd.quantisers.kernels import cpu

        return cpu
    pytest.importorskip("triton")
    from fetchsgd.quantisers.kernels import cuda

    return cuda if request.param == "interpreted" else OnGpu(cuda)


class OnGpu:
    def __init__(self, kernels):
        self.kernels = kernels

    def __getattr__(self, name):
        def call(*arguments):
            out = getattr(self.kernels, name)(
                *(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments)
            )
            return tuple(t.cpu() for t in out) if isinstance(out, tuple) else out.cpu()

        return call
