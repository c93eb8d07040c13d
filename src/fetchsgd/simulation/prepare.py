"""From what a user asks for to a run that is set up: the same from a command line and from Python.

Later layers win: a preset, what is given, single settings; a budget decides the rest
(budgeted.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fetchsgd.ranks import ALONE, Ranks
from fetchsgd.runs.older import going_on
from fetchsgd.runs.settings import Assignment, Made, merge, resolve, with_names
from fetchsgd.runs.settings.presets import preset as find_preset
from fetchsgd.runs.toml_files import Settings
from fetchsgd.simulation.budgeted import starts_from, within
from fetchsgd.simulation.run import Run

SEEN = (
    "; these and --preset messages, for a server that sees each message: for one that sees only "
    "sums add --preset sums"
)


@dataclass(frozen=True)
class Prepared:
    """A run, and sentences that the user should read before it starts."""

    run: Run
    notes: list[str]


def prepare(
    given: Settings,
    assignments: Sequence[Assignment] = (),
    *,
    preset: str | None = None,
    budget: str | None = None,
    resumed: Path | None = None,
    ranks: Ranks = ALONE,
) -> Prepared:
    """Loads the task's data. `resumed` is the folder of a run that is to go on.

    ranks: processes that train together; the first alone has notes.
    """
    own, start = given, {} if preset is None else find_preset(preset)
    if budget is not None and preset is None:
        start = starts_from(given, assignments)
    given = merge(start, given) if start else given
    if resumed is not None:
        given = going_on(with_names(given, assignments), resumed)
    made: Made = {}
    notes = []
    if budget is None:
        config = resolve(given, assignments, made)
    else:
        config, note = within(budget, given, own, assignments, made)
        notes.append(note + SEEN if start and preset is None else note)
    run = Run(config, ranks=ranks)
    if not ranks.is_first:
        return Prepared(run, [])
    return Prepared(run, [*notes, *(f"note: {note}" for note in run.notes)])
