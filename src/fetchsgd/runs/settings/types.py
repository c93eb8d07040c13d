"""Values as the types that settings ask for, or a UserError."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fetchsgd.errors import UserError
from fetchsgd.named import REQUIRED

NAMES = {
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def check_types(section: str, values: dict[str, Any], kind: type) -> None:
    """Turn the values into the types of that dataclass, or raise UserError."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        values[key] = typed(f"{section}.{key}", value, hints[key])


def like(name: str, value: Any, default: Any) -> Any:
    """The value as the type of its default, where there is one."""
    return value if default is None or default is REQUIRED else typed(name, value, type(default))


def typed(name: str, value: Any, wanted: Any) -> Any:
    """The value as the wanted type, or a UserError."""
    origin = get_origin(wanted) or wanted
    if origin is Literal:
        return _choice(name, value, get_args(wanted))
    if origin in (Union, UnionType):
        return _one_of(name, value, get_args(wanted))
    if origin in (float, int):
        return _number(name, value, origin)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return _items(name, value, origin, get_args(wanted))
    if origin is dict and isinstance(value, dict):
        inner = get_args(wanted)[1:] or (Any,)
        return {key: typed(f"{name}.{key}", item, inner[0]) for key, item in value.items()}
    if origin is Any or (isinstance(origin, type) and isinstance(value, origin)):
        return value
    raise _wrong(name, value, origin)


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """2.0 is the choice 2, and true is not the choice 1."""
    for choice in choices:
        if value == choice and isinstance(value, bool) == isinstance(choice, bool):
            return choice
    raise _wrong(name, value, Literal[choices])


def _one_of(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and NoneType in kinds:
        return None
    given = [kind for kind in kinds if kind is not NoneType]
    for kind in given:
        try:
            return typed(name, value, kind)
        except UserError:
            continue
    raise _wrong(name, value, *given)


def _number(name: str, value: Any, kind: type) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value:  # only nan differs from itself
        raise _wrong(name, value, kind)
    if kind is int:
        if value in (math.inf, -math.inf) or value != int(value):
            raise _wrong(name, value, kind)
        return int(value)
    try:
        return float(value)
    except OverflowError as error:
        raise UserError(f"{name} must be below 1.8e308, got a larger number") from error


def _items(name: str, value: Any, kind: type, inner: tuple[Any, ...]) -> Any:
    """A list or a tuple with every item as its own type."""
    if kind is list or not inner or inner[-1] is Ellipsis:
        wanted = [inner[0] if inner else Any] * len(value)
    else:
        wanted = list(inner)
    if len(wanted) != len(value):
        raise UserError(f"{name} must be a list of {len(wanted)}, got {value!r}")
    pairs = enumerate(zip(value, wanted, strict=True))
    return kind(typed(f"{name}[{i}]", item, own) for i, (item, own) in pairs)


def _wrong(name: str, value: Any, *wanted: Any) -> UserError:
    return UserError(f"{name} must be {' or '.join(map(_describe, wanted))}, got {value!r}")


def _describe(wanted: Any) -> str:
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(repr, get_args(wanted)))}"
    kind = get_origin(wanted) or wanted
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))
