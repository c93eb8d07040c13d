"""Values as the types that settings ask for, or a sentence."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

from fetchsgd.errors import UserError


def check_types(section: str, values: dict[str, Any], kind: type) -> None:
    """Turn the values into the types of that dataclass, or a sentence."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        values[key] = typed(f"{section}.{key}", value, hints[key])


def like(name: str, value: Any, default: Any) -> Any:
    """The value as the type of its default, where there is one."""
    return value if default is None else typed(name, value, type(default))


def typed(name: str, value: Any, wanted: Any) -> Any:
    """The value as the wanted type, or a sentence."""
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            choices = ", ".join(repr(choice) for choice in get_args(wanted))
            raise UserError(f"{name} must be one of {choices}, got {value!r}")
        return value
    wanted = get_origin(wanted) or wanted
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is float and is_number:
        return float(value)
    if wanted is int and is_number and value == int(value):
        return int(value)
    if wanted in (str, bool, list, dict) and isinstance(value, wanted):
        return value
    names = {
        float: "a number",
        int: "a whole number",
        str: "a text",
        bool: "true or false",
        list: "a list",
    }
    raise UserError(f"{name} must be {names.get(wanted, wanted.__name__)}, got {value!r}")
