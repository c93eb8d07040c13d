"""Whether the host waits for a GPU."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def nothing_waits():
    """While this lasts, an operation that makes the host wait for the device raises an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
