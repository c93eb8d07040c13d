"""Draws the README's badges, from pyproject.toml: `python docs/figures/badges.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 6.6  # of a character


def badge(left: str, right: str, colour: str) -> str:
    one, two = (round(WIDTH * len(words)) + 12 for words in (left, right))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{one + two}" height="20" role="img" '
        f'aria-label="{left}: {right}" font-family="Verdana, sans-serif" font-size="11">\n'
        f'  <rect width="{one + two}" height="20" rx="3" fill="{colour}"/>\n'
        f'  <path d="M3 0H{one}V20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#555"/>\n'
        f'  <text x="{one / 2:g}" y="14" fill="#fff" text-anchor="middle">{left}</text>\n'
        f'  <text x="{one + two / 2:g}" y="14" fill="#fff" text-anchor="middle">{right}</text>\n'
        "</svg>\n"
    )


def badges() -> dict[str, str]:
    """Files and what is in them."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    named = "Programming Language :: Python :: "
    versions = [c.removeprefix(named) for c in project["classifiers"] if c.startswith(named)]
    return {
        "badge-python.svg": badge("python", " | ".join(versions), "#0072b2"),
        "badge-licence.svg": badge("licence", project["license"], "#5b6472"),
        "badge-docs.svg": badge("docs", "read", "#007a5e"),
    }


if __name__ == "__main__":
    for name, drawn in badges().items():
        (HERE / name).write_text(drawn)
