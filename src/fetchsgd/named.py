"""Parts that settings name: one of ours by its name, or the user's own by `package.module:name`.

Tasks are functions; methods, quantisers and grids are classes. What cannot be imported by a name,
as a function inside a function, has one for a while: see `in_memory`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from fetchsgd.errors import UserError

T = TypeVar("T", bound=Callable[..., Any])


class Required(Enum):
    """Marks an option that has no default; None may be a default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED

IN_MEMORY = "memory:"
# The one table of this package that changes: names are looked up far from where objects come in.
_in_memory: dict[str, Any] = {}


@contextmanager
def in_memory(objects: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts, `find` knows these objects by the names that `name_of` gave them."""
    before = dict(_in_memory)
    _in_memory.update(objects)
    try:
        yield
    finally:
        _in_memory.clear()
        _in_memory.update(before)


def name_of(found: Callable[..., Any], title: str | None = None) -> str:
    """`package.module:name` if that leads back to the object, else a name for `in_memory`."""
    title = title or str(getattr(found, "__name__", type(found).__name__))
    module = getattr(found, "__module__", None)
    if getattr(sys.modules.get(module or ""), title, None) is found:
        return f"{module}:{title}"
    return f"{IN_MEMORY}{title}"


def find(kind: str, name: str, known: Mapping[str, T], form: str = "class") -> T:
    """What a name stands for. kind: "task", "method"; form: what users write, for the sentences."""
    if name in known:
        return known[name]
    if name in _in_memory:
        held: T = _in_memory[name]
        return held
    if name.startswith(IN_MEMORY):
        raise UserError(
            f"{kind} {name!r} was an object of the program that trained with it, and cannot be "
            f"imported; give the {kind} itself, as that program did"
        )
    module_name, colon, own_name = name.partition(":")
    if not colon:
        raise UserError(
            f"there is no {kind} {name!r}; {_hint(name, known)}known are {', '.join(known)}, "
            f"and your own as package.module:{form}"
        )
    module = _import(kind, name, module_name)
    found = getattr(module, own_name, None)
    if found is None:
        raise UserError(f"{kind} {name!r}: {module_name} has no {form} {own_name!r}")
    if not isinstance(found, type) if form == "class" else not callable(found):
        raise UserError(
            f"{kind} {name!r}: {own_name!r} in {module_name} must be a {form}, got {found!r}"
        )
    own: T = found
    return own


def _import(kind: str, name: str, module_name: str) -> ModuleType:
    if not all(word.isidentifier() for word in module_name.split(".")):
        raise UserError(f"{kind} {name!r}: {module_name!r} is not the name of a module")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does, so that a file beside the user is found
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{kind} {name!r}: cannot import {error.name!r}; is it on the path?"
        ) from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known."""
    names = sorted(set(known))
    return f"; {_hint(word, names) or 'known are ' + ', '.join(names)}".rstrip()


def _hint(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""
