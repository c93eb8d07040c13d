"""Runs whose method, quantiser and grid are none of ours, each named as package.module:Class."""

from __future__ import annotations

METHOD = {"name": "outside.random_k:RandomK", "k": 30}
UPLOAD = {"quantiser": "outside.ternary:Ternary", "stretch": 1.5}
DOWNLOAD = {"grid": "outside.dyadic:Dyadic", "step": 2**-12}
GIVEN = {
    "task": {"name": "tinytask:tiny"},
    "method": METHOD,
    "upload": UPLOAD,
    "download": DOWNLOAD,
}
AS_TEXT = [
    f"{section}.{key}={value}"
    for section in ("method", "upload", "download")
    for key, value in GIVEN[section].items()
]


def given(**sections):
    """The settings with some changed: `method={"keep": True}`."""
    return {name: values | sections.get(name, {}) for name, values in GIVEN.items()} | {
        name: values for name, values in sections.items() if name not in GIVEN
    }
