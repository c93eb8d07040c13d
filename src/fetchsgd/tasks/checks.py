"""Sentences for mistakes in a task of one's own: in its data, its model, its loss and its quality.

Each names the argument of `Task` or `ClientData` that is wrong, and says what would be right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.trees import Tree, leaves

INSTEAD = {
    np.ndarray: "torch.from_numpy(...) makes one of an array, and from_arrays(...) reads a large "
    "one bit by bit",
    list: "torch.tensor(...) makes one of a list",
}


# --- data


def check_tensors(inputs: Tree, targets: Tree, whose: str = "the task's clients") -> None:
    """Examples are tensors, and there are as many of every kind."""
    counts: dict[str, int] = {}
    for kind, tree in (("inputs", inputs), ("targets", targets)):
        found = list(leaves(tree))
        for part in found:
            if not isinstance(part, Tensor):
                raise UserError(
                    f"{kind} of {whose} must be a tensor, or a tuple or dict of tensors, got "
                    f"{_a(part)}{_instead(tree, part)}"
                )
            if part.ndim == 0:
                raise UserError(f"{kind} of {whose} must have a row per example, got one number")
        if not found:
            raise UserError(f"{kind} of {whose} are empty: {tree!r}; there must be a tensor")
        sizes = [len(part) for part in found]
        if len(set(sizes)) > 1:
            raise UserError(
                f"{kind} of {whose} have {', '.join(map(str, sizes))} rows; all their tensors "
                "must have a row per example"
            )
        counts[kind] = sizes[0]
    if counts["inputs"] != counts["targets"]:
        raise UserError(
            f"{whose} have {counts['inputs']} inputs and {counts['targets']} targets; there must "
            "be one of each per example"
        )


def check_offsets(offsets: Any, examples: int) -> None:
    """Every client owns at least one example, and all examples are owned."""
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise UserError(
            "offsets must be a numpy array of integers, of which client i owns rows offsets[i] to "
            f"offsets[i + 1], got {_a(offsets)}; ClientData.from_groups makes them from the "
            "client of each example"
        )
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != examples:
        ends = "nothing" if not len(offsets) else f"{offsets[0]} ... {offsets[-1]}"
        raise UserError(
            f"the task has {examples} examples, but offsets are {ends}; they must go from 0 to "
            f"{examples}"
        )
    empty = np.flatnonzero(np.diff(offsets) <= 0)
    if len(empty):
        raise UserError(f"client {empty[0]} of the task has no data; leave it out")


def grouped(client_of: Any, examples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The examples in the order of their clients, and where each client's begin."""
    owners = np.asarray(client_of)
    if owners.ndim != 1 or owners.dtype.kind not in "iu":
        raise UserError(
            "client_of must hold the number of each example's client, got "
            f"{_a(client_of)} of {owners.dtype} and shape {owners.shape}; np.unique(names, "
            "return_inverse=True)[1] makes numbers of names"
        )
    if len(owners) != examples:
        raise UserError(
            f"client_of has {len(owners)} numbers for {examples} examples; there must be one each"
        )
    if len(owners) and owners.min() < 0:
        raise UserError(f"client_of holds {owners.min()}; clients are numbered from 0")
    order = np.argsort(owners, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(owners))])


# --- functions


def check_parts(task: str, **functions: Any) -> None:
    """The parts of a task that are called."""
    for name, part in functions.items():
        if isinstance(part, nn.Module) and name == "model":
            raise UserError(
                f"model of the task {task!r} must be a function without arguments that makes the "
                "module, so that every run starts from weights of its own seed; write it as "
                "`lambda: ...`"
            )
        if not callable(part):
            raise UserError(f"{name} of the task {task!r} must be a function, got {_a(part)}")


def check_module(module: Any, task: str) -> nn.Module:
    if isinstance(module, nn.Module):
        return module
    raise UserError(f"model of the task {task!r} must return a torch.nn.Module, got {_a(module)}")


def checked_losses(losses: Any, examples: int) -> Tensor:
    """What `Task.loss` gave, if it is one number per example."""
    _check_result("loss", losses, examples, "(n,)")
    if losses.shape != (examples,):
        raise UserError(_wrong_shape("loss", losses, examples))
    found: Tensor = losses
    return found


def checked_quality(quality: Any, examples: int) -> Tensor:
    """What `Task.quality` gave, if it is one number per example, or a total and a count."""
    _check_result("quality", quality, examples, "(n,) or (n, 2)")
    if quality.shape not in ((examples,), (examples, 2)):
        raise UserError(_wrong_shape("quality", quality, examples))
    found: Tensor = quality
    return found


def _check_result(name: str, result: Any, examples: int, shape: str) -> None:
    if not isinstance(result, Tensor):
        raise UserError(
            f"the task's {name} must return a tensor of shape {shape}, one number per example, "
            f"got {_a(result)} for {examples} examples"
        )
    if result.is_complex():
        raise UserError(f"the task's {name} must return real numbers, got {result.dtype}")


def _wrong_shape(name: str, result: Tensor, examples: int) -> str:
    start = f"the task's {name} must give one number per example"
    if result.ndim == 0:
        return (
            f"{start}, got a single one for {examples} examples; torch's losses do so with "
            "reduction='none', and a model that returns the mean loss of a batch can be wrapped in "
            "fetchsgd.tasks.EachExample"
        )
    hint = ""
    if result.shape == (examples, examples):
        hint = "; outputs of shape (n, 1) and targets of shape (n,) broadcast to that"
    elif result.shape[0] == examples:
        hint = "; take the mean over all dimensions but the first"
    return f"{start}, got shape {tuple(result.shape)} for {examples} examples{hint}"


def _a(thing: Any) -> str:
    return f"a {type(thing).__module__}.{type(thing).__qualname__}".replace("builtins.", "")


def _instead(tree: Tree, part: Any) -> str:
    for kind, hint in INSTEAD.items():
        if isinstance(part, kind) or isinstance(tree, kind):
            return f"; {hint}"
    return ""
