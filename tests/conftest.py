"""Shapes and dtypes in annotations are checked at run time while the tests run."""

from __future__ import annotations

import importlib.util
import os
import signal

# Tests are many small computations. Threads that wait for each other by spinning make them ten
# times slower wherever others share the cores; tests of threads ask for them. For children, too.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts what it runs in the background deaf to Ctrl-C, and children would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# On shared cores any example may take long.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# Without a GPU, Triton's interpreter runs the GPU kernels on the CPU. It is chosen at import.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# All but what numba and Triton compile, and what users call: that has checks of its own, whose
# sentences the tests want to see.
CHECKED = [
    "fetchsgd.sketch.hashing",
    "fetchsgd.sketch.permutation",
    "fetchsgd.sketch.kernels.cpu",
    "fetchsgd.sketch.kernels.cuda",
    "fetchsgd.sketch.kernels.cuda_layout",
    "fetchsgd.sketch.kernels.permuted.cpu",
    "fetchsgd.sketch.kernels.permuted.cuda",
    "fetchsgd.sketch.kernels.permuted.reference",
    "fetchsgd.sketch.kernels.pieces",
    "fetchsgd.sketch.kernels.reference",
    "fetchsgd.sketch.kernels.selection",
    "fetchsgd.quantisers.kernels.cpu",
    "fetchsgd.quantisers.kernels.cuda",
    "fetchsgd.quantisers.kernels.reference",
]

if importlib.util.find_spec("beartype"):
    install_import_hook(CHECKED, "beartype.beartype")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
