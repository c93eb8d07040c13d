"""Whether the site is whole: `python docs/check_site.py build/docs`, after it was built.

Every public name is in the reference and has a docstring, and every link within the site leads to
a file, and to a place in it where it names one.
"""

from __future__ import annotations

import inspect
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

from sphinx.util.inventory import InventoryFile

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from public_modules import PUBLIC, home_of, public_names

OUTSIDE = ("http", "https", "mailto", "data", "javascript")


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def dead_links(site: Path) -> list[str]:
    """Links to files, or to places in them, that are not there."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            if urlparse(link).scheme in OUTSIDE:
                continue
            target, place = urlparse(link).path, urldefrag(link).fragment
            file = (path.parent / unquote(target)).resolve() if target else path
            if not file.exists():
                found.append(f"{path.relative_to(site)} links to {link}: there is no such file")
            elif place and file in pages and unquote(place) not in pages[file].anchors:
                found.append(f"{path.relative_to(site)} links to {link}: there is no such place")
    return found


def has_docstring(thing: object) -> bool:
    """Functions and classes must have one. That which dataclasses get by themselves is none."""
    ours = getattr(thing, "__module__", "").startswith("fetchsgd")
    if not ours or not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return True
    written = thing.__doc__ or ""
    return bool(written) and not written.startswith(f"{thing.__name__}(")


def undocumented(site: Path) -> list[str]:
    """Public names without a docstring, or without a place in the reference."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    described = {
        name for kind, names in inventory.items() if kind.startswith("py:") for name in names
    }
    found = []
    for module in PUBLIC:
        for name in public_names(module):
            thing = getattr(import_module(module), name)
            if (home_of(thing) or f"{module}.{name}") not in described:
                found.append(f"{module}.{name} is not in the reference")
            elif not has_docstring(thing):
                found.append(f"{module}.{name} has no docstring")
    return found


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    wrong = [*undocumented(site), *dead_links(site)]
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
