"""From what a user asks for to a run that is set up: the same from a command line and from Python.

Later layers win: a preset, what is given, single settings; a budget decides the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fetchsgd.errors import UserError
from fetchsgd.ranks import ALONE, Ranks
from fetchsgd.runs.budget import choose, parse_budget
from fetchsgd.runs.older import going_on
from fetchsgd.runs.settings import (
    Assignment,
    Config,
    Made,
    merge,
    parse_assignments,
    parse_names,
    resolve,
)
from fetchsgd.runs.settings.presets import preset as find_preset
from fetchsgd.runs.toml_files import Settings
from fetchsgd.simulation.run import Run
from fetchsgd.vector import FlatModel


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
    if preset is not None:
        given = merge(find_preset(preset), given)
    if resumed is not None:
        given = going_on(merge(given, parse_names(assignments)), resumed)
    made: Made = {}
    config = resolve(given, assignments, made)
    notes = []
    if budget is not None:
        config, note = _within(budget, config, given, assignments, made)
        notes.append(note)
    run = Run(config, ranks=ranks)
    if not ranks.is_first:
        return Prepared(run, [])
    return Prepared(run, [*notes, *(f"note: {note}" for note in run.notes)])


def _within(
    budget: str, config: Config, given: Settings, assignments: Sequence[Assignment], made: Made
) -> tuple[Config, str]:
    """The same settings but for those that a budget decides, and a sentence about these."""
    dim = FlatModel(config.task.model()).dim
    bytes = parse_budget(budget, dim)
    chosen = choose(config.method, dim, bytes, config.method_options.get("rows", 1))
    names = [f"{section}.{key}={v}" for section, keys in chosen.items() for key, v in keys.items()]
    own = merge(given, parse_assignments(assignments, config.settings))
    for section, keys in chosen.items():
        for key in keys:
            if key in own.get(section, {}):
                raise UserError(f"--budget chooses {section}.{key}: leave one of the two out")
    note = f"budget of {bytes:,} bytes ({4 * dim / bytes:.3g}x): {', '.join(names)}"
    return resolve(given, [*assignments, *names], made), note
