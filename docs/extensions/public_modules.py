"""Which modules are public, and on which page of the reference each of their names is described.

A thing that several of them offer is described with the first: so what `fetchsgd` itself offers is
with the module that it is about, if that is public, and on its own page there is a list.
"""

from functools import cache
from importlib import import_module

PUBLIC = (
    "fetchsgd.errors",
    "fetchsgd.tasks",
    "fetchsgd.methods",
    "fetchsgd.methods.messages",
    "fetchsgd.sketch",
    "fetchsgd.sketch.windows",
    "fetchsgd.quantisers",
    "fetchsgd.wire",
    "fetchsgd.server.grids",
    "fetchsgd.simulation",
    "fetchsgd.flower.own_app",
    "fetchsgd.secure",
    "fetchsgd.privacy",
    "fetchsgd.report",
    "fetchsgd.theory",
    "fetchsgd.diagnose",
    "fetchsgd.ddp",
    "fetchsgd",
)


def module_of_page(docname: str) -> str:
    """`docs/api/wire` describes `fetchsgd.wire`, and `docs/api/fetchsgd` the package."""
    name = docname.rpartition("/")[2]
    return name if name == "fetchsgd" else f"fetchsgd.{name}"


def public_names(module: str) -> list[str]:
    """What a module offers: `__all__`, or what is defined in it and has no underscore."""
    found = import_module(module)
    defined = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return list(getattr(found, "__all__", defined))


@cache
def _homes() -> dict[int, str]:
    homes: dict[int, str] = {}
    for module in PUBLIC:
        for name in public_names(module):
            homes.setdefault(id(getattr(import_module(module), name)), f"{module}.{name}")
    return homes


def summary(thing: object) -> str:
    """The first paragraph of a docstring, in one line."""
    written = (getattr(thing, "__doc__", None) or "").strip().split("\n\n")[0]
    return " ".join(written.split())


def names_table() -> str:
    """What `import fetchsgd as fs` offers, in Markdown, with links to where it is described."""
    top = import_module("fetchsgd")
    lines = ["| | |", "|---|---|"]
    for name in top.__all__:
        thing = getattr(top, name)
        words = summary(thing).replace("|", "\\|")
        lines.append(f"| {{py:obj}}`fs.{name} <{home_of(thing)}>` | {words} |")
    return "\n".join(lines)


def home_of(thing: object) -> str | None:
    """The full name by which a thing is described, if it is public."""
    return _homes().get(id(thing))
