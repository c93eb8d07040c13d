"""What the settings of older versions mean, which were written before some of ours existed.

FetchSGD was the paper's form alone, one hash for the whole run; changes on a grid of steps were
never rounded to several of them; and clients added weight decay. There were no settings for that,
so settings that were written then do not say so, and today's defaults are others. A run folder or
a published result without `method.hash` is the paper's form, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fetchsgd.runs.files import CONFIG, read_config
from fetchsgd.runs.toml_files import Settings


class Then(NamedTuple):
    """What went without saying where a section names this part.

    name: of the part; None where any value that is not 0 will do.
    """

    section: str
    key: str
    name: str | None
    default: str | None  # what a section without that key names
    options: dict[str, Any]

    def is_in(self, settings: Mapping[str, Any]) -> bool:
        section = settings.get(self.section, {})
        return isinstance(section, Mapping) and self.names(section.get(self.key))

    def names(self, value: object) -> bool:
        return bool(value) if self.name is None else value == self.name

    def is_unsaid(self, written: Mapping[str, Any]) -> bool:
        """Whether the part is there, and none of its newer options is."""
        return self.is_in(written) and not self.options.keys() & written[self.section].keys()


FETCHSGD = "fetchsgd"
PAPERS_FORM = "fetchsgd-paper"  # with one hash for the whole run
PARTS = (
    Then("method", "name", FETCHSGD, FETCHSGD, {"hash": "fixed"}),
    Then("download", "grid", "steps", "float32", {"coarse": False}),
    Then("train", "weight_decay", None, "the task's", {"weight_decay_by": "clients"}),
)


def form_of(name: str, options: Mapping[str, Any]) -> str:
    """What a method with these options is called where FetchSGD's two forms are two methods.

    >>> form_of("fetchsgd", {"hash": "fixed", "k": 10})
    'fetchsgd-paper'
    """
    return PAPERS_FORM if name == FETCHSGD and options.get("hash") == "fixed" else name


def as_meant(written: Mapping[str, Any]) -> Settings:
    """Settings as a run has written them, with what went without saying."""
    meant = dict(written)
    for part in _unsaid(written):
        meant[part.section] = {**part.options, **written[part.section]}
    return meant


def going_on(given: Settings, folder: Path) -> Settings:
    """Settings with which the run in a folder goes on: as given, and else as they were meant."""
    if not (folder / CONFIG).exists():
        return given
    for part in _unsaid(read_config(folder).values):
        own = given.get(part.section, {})
        if part.names(own.get(part.key, part.default)):
            given = {**given, part.section: {**part.options, **own}}
    return given


def rewritten(settings: Settings, written: Mapping[str, Any]) -> Settings:
    """Settings for a folder that has those written: it stays one of an older version."""
    for part in _unsaid(written):
        own = {k: v for k, v in settings[part.section].items() if k not in part.options}
        settings = {**settings, part.section: own}
    return settings


def _unsaid(written: Mapping[str, Any]) -> Iterator[Then]:
    return (part for part in PARTS if part.is_unsaid(written))
