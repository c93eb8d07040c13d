"""Parts of a run that a setting names, such as the method: their class says which options exist.

`[method] name` names a class, and the fields of that dataclass are the other settings of the
section. A part may share its section with settings that are always there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.methods import METHODS
from fetchsgd.named import REQUIRED, find
from fetchsgd.quantisers import QUANTISERS
from fetchsgd.robust import ATTACKS, RULES
from fetchsgd.runs.older import FETCHSGD, form_of
from fetchsgd.runs.toml_files import Settings
from fetchsgd.server.grids import GRIDS
from fetchsgd.sums import SUMS


@dataclass(frozen=True)
class Part:
    """Where a part is named, and what it may be.

    not_options: fields that the program fills in, not the user.
    usual: what is meant where no name is given, if that depends on other settings.
    """

    section: str
    key: str
    known: Mapping[str, type]
    default: str
    not_options: frozenset[str] = frozenset()
    usual: Callable[[Settings], str] | None = None

    @property
    def setting(self) -> str:
        """The full name of the setting that names the part."""
        return f"{self.section}.{self.key}"

    @property
    def noun(self) -> str:
        """What it is called in sentences: "method", "quantiser", "grid"."""
        return self.section if self.key == "name" else self.key

    def name_in(self, given: Settings) -> str:
        usual = self.default if self.usual is None else self.usual(given)
        return str(given.get(self.section, {}).get(self.key, usual))

    def find(self, name: str) -> type:
        """The class of that name; UserError if there is none."""
        kind = find(self.noun, name, self.known)
        if not is_dataclass(kind):
            raise UserError(
                f"{self.setting} = {name!r} must name a dataclass, whose fields are its options"
            )
        return kind

    def options(self, name: str) -> dict[str, Any]:
        """The options with their defaults, or REQUIRED."""
        return defaults_of(self.find(name), self.not_options)

    def owners(self, key: str) -> list[str]:
        """The classes that have this option."""
        return [name for name in self.known if key in self.options(name)]

    def not_an_option(self, key: str, name: str) -> str:
        """Which other classes have an option that this one has not; empty if none has."""
        owners = self.owners(key)
        if not owners or name in owners:
            return ""
        name = f"{self.setting} = {name!r}" if self in (SUM, MERGE, ATTACK) else name
        return f"{name} has no option {key!r}, {', '.join(owners)} {_have(owners)}"


@dataclass(frozen=True)
class Chosen:
    """A part as a run uses it: its class by name, and its options."""

    name: str
    kind: type
    options: dict[str, Any]

    def made(self, *given: Any, **more: Any) -> Any:
        """The part itself, with what the program fills in."""
        return self.kind(*given, **more, **self.options)


METHOD = Part("method", "name", METHODS, FETCHSGD, frozenset({"dim"}))
QUANTISER = Part("upload", "quantiser", QUANTISERS, "bits")


def method_in(settings: Settings) -> str:
    """The method, in the form that the settings give it."""
    return form_of(METHOD.name_in(settings), settings.get(METHOD.section, {}))


def usual_grid(settings: Settings) -> str:
    """Where every weight may move a little in every round, only whole steps make that short."""
    return "steps" if method_in(settings) == FETCHSGD else "float32"


GRID = Part("download", "grid", GRIDS, "float32", frozenset({"sizes", "origin"}), usual_grid)
SUM = Part("upload", "sum", SUMS, "plain")
MERGE = Part("merge", "name", RULES, "mean")
ATTACK = Part("attack", "name", ATTACKS, "none")
PARTS = (METHOD, QUANTISER, GRID, SUM, MERGE, ATTACK)


def forms_in(settings: Settings) -> list[str]:
    """What a task's suggestions for this run may be named by, the closest first.

    "messages" is for whole gradients in levels of one step, as in the preset of that name.
    """
    name = METHOD.name_in(settings)
    parts = name, QUANTISER.name_in(settings)
    messages = ["messages"] if parts == ("uncompressed", "shared_step") else []
    return [*messages, method_in(settings), name]


def defaults_of(kind: type, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Every field that may be given, with its default or REQUIRED."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        if not field.init or field.name in but:
            continue
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = REQUIRED
    return found


def _have(owners: list[str]) -> str:
    return "has" if len(owners) == 1 else "have"
