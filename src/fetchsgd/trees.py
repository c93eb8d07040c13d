"""What goes into a model and comes out: a tensor, or several in tuples, lists, dicts, dataclasses.

A tuple of inputs is given to a model as arguments one after another, a dict by its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor, nn

Tree = Any  # a tensor, or a tuple, list, dict or dataclass of trees


def tree_map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with its leaves changed: whatever is no container, and not None."""
    if tree is None:
        return None
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {part.name: getattr(tree, part.name) for part in fields(tree) if part.init}
        return replace(tree, **{name: tree_map(function, part) for name, part in parts.items()})
    if isinstance(tree, Mapping):
        return {name: tree_map(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, part) for part in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, part) for part in tree)
    return function(tree)


def leaves(tree: Tree) -> Iterator[Any]:
    found: list[Any] = []
    tree_map(found.append, tree)
    return iter(found)


def first_leaf(tree: Tree) -> Tensor:
    """All leaves have as many examples, and are on one device."""
    found: Tensor = next(leaves(tree))
    return found


def at(tree: Tree, index: Any) -> Tree:
    """Some examples of each leaf."""
    return tree_map(lambda part: part[index], tree)


def flatten_clients(tree: Tree) -> Tree:
    """From (n, m, ...) to (n m, ...)."""
    return tree_map(lambda part: part.flatten(0, 1), tree)


def to_floats(tree: Tree) -> Tree:
    """Floats of few bits as float32; whatever else a model returns stays as it is."""

    def change(part: Any) -> Any:
        is_float = isinstance(part, Tensor) and part.is_floating_point()
        return part.float() if is_float else part

    return tree_map(change, tree)


def call(module: nn.Module, inputs: Tree) -> Tree:
    """What a module makes of its inputs, as arguments in their order or by their names."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple):
        return module(*inputs)
    return module(inputs)
