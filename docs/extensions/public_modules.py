"""Which modules are public, and on which page of the reference each of their names is described."""

from functools import cache
from importlib import import_module

PUBLIC = (
    "fetchsgd",
    "fetchsgd.errors",
    "fetchsgd.tasks",
    "fetchsgd.methods",
    "fetchsgd.methods.messages",
    "fetchsgd.sketch",
    "fetchsgd.sketch.windows",
    "fetchsgd.quantisers",
    "fetchsgd.wire",
    "fetchsgd.server.grids",
    "fetchsgd.simulate",
    "fetchsgd.report",
    "fetchsgd.theory",
    "fetchsgd.diagnose",
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


def home_of(thing: object) -> str | None:
    """The full name by which a thing is described, if it is public."""
    return _homes().get(id(thing))
