"""Start a Triton program on the GPU that holds its data.

Triton launches on the current device, whatever device the tensors are on. With `device = "cuda:1"`
the current one is usually cuda:0, and the program would read memory of another GPU. So all launches
go through here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(
    program: Any, grid: tuple[int, ...], first: Tensor, /, *arguments: Any, **constants: Any
) -> None:
    """`program[grid](first, *arguments, **constants)` on the device of `first`.

    In Triton's interpreter tensors are on the CPU, where there is no current device to change.
    """
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            program[grid](first, *arguments, **constants)
    else:
        program[grid](first, *arguments, **constants)
