"""Many runs from one file: the paper's grids. sweep_jobs.py runs them.

A sweep file is a run file with entries [[sweep]]. Each entry sets keys, `section.key = value`; a
list of values makes every combination with the other lists of that entry:

    [train]
    epochs = 24
    [[sweep]]
    "method.name" = "fetchsgd"
    "method.k" = [500, 2000]
    "method.cols" = [4000, 8000]
    [[sweep]]
    "method.name" = "fedavg"
    "train.epochs" = [6, 12]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fetchsgd.errors import UserError
from fetchsgd.runs.environment import choose_device
from fetchsgd.runs.settings import METHOD, Config, Made, merge, resolve
from fetchsgd.runs.setup import load_test_data, make_grid, make_method
from fetchsgd.runs.toml_files import Settings, read_toml
from fetchsgd.vector import FlatModel

Sizes = dict[int, list[int]]  # of the tensors of a task's model, by the task


@dataclass(frozen=True)
class Planned:
    """A run of a sweep: its folder's name, and its settings as given and as resolved."""

    name: str
    given: Settings
    settings: Settings


def read_sweep(path: Path) -> list[Planned]:
    """All runs of a sweep file, each checked, so that mistakes show before any work starts."""
    return plan(read_toml(path), str(path))


def plan(content: dict[str, Any], where: str) -> list[Planned]:
    """The same from what such a file holds; `where` is its name in sentences."""
    entries = content.get("sweep")
    if isinstance(entries, dict):
        raise UserError(f"{where}: write [[sweep]] with two brackets, since there may be several")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where} has no [[sweep]] entries; for a single run use 'fetchsgd train'")
    base = {section: values for section, values in content.items() if section != "sweep"}
    named: dict[str, Settings] = {}
    for entry in entries:
        for name, given in _expand(base, entry, where):
            if name in named:
                raise UserError(f"{where} has two runs {name!r}{_why(named[name], given)}")
            named[name] = given
    return _check(named, where)


def _why(one: Settings, other: Settings) -> str:
    if one == other:
        return "; they differ in nothing"
    return ", though their settings differ: put them into two sweeps"


def _check(named: dict[str, Settings], where: str) -> list[Planned]:
    """Everything that can be known to fail. Data is read, and a model made, once for each task."""
    made: Made = {}
    known: Sizes = {}
    planned = []
    for name, given in named.items():
        try:
            planned.append(check_run(name, given, made, known))
        except UserError as error:
            raise UserError(f"{where}, run {name!r}: {error}") from error
    return planned


def check_run(name: str, given: Settings, made: Made, known: Sizes | None = None) -> Planned:
    """One run; a UserError for what it would refuse. `made`, `known`: of runs before it."""
    config = resolve(given, made=made)
    _check_parts(config, _sizes(config, {} if known is None else known))
    return Planned(name, given, config.settings)


def _check_parts(config: Config, sizes: list[int]) -> None:
    """What a run would refuse before its first round. `sizes` are those of the model's tensors."""
    choose_device(config.train.device)
    make_method(config, sum(sizes))
    make_grid(config, sizes, torch.zeros(sum(sizes)))
    _ = config.quantiser
    load_test_data(config.task)


def _sizes(config: Config, known: Sizes) -> list[int]:
    """Of the tensors of the task's model; `known` holds those of tasks that were seen before."""
    task = config.task
    if id(task) not in known:
        known[id(task)] = list(FlatModel(task.model()).sizes)
    return known[id(task)]


def _expand(base: Settings, entry: Any, where: str) -> Iterator[tuple[str, Settings]]:
    """The names and settings of an entry's runs."""
    if not isinstance(entry, dict):
        raise UserError(f"{where}: sweep must be written as sections [[sweep]], got {entry!r}")
    for key, value in entry.items():
        if key.count(".") != 1:
            raise UserError(_not_a_name(key, value, where))
        if value == []:
            raise UserError(f"{where}: {key} = [] in [[sweep]] makes no run; give it a value")
    lists = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        given = merge(base)
        for key, value in chosen.items():
            section, name = key.split(".")
            given = merge(given, {section: {name: value}})
        yield _name(given, chosen), given


def _not_a_name(key: str, value: Any, where: str) -> str:
    """method.k without quotes is a table to TOML, and k alone has no section."""
    inner = next(iter(value), "key") if isinstance(value, dict) else None
    full = f"{key}.{inner}" if inner else f"section.{key}"
    return f'{where}: write {key} in [[sweep]] as "{full}", in quotes'


def _name(given: Settings, chosen: dict[str, Any]) -> str:
    """The method, and what the entry sets: fetchsgd-k500-cols4000."""
    parts = [METHOD.name_in(given)]
    for key, value in chosen.items():
        section, name = key.split(".")
        # The paper's form is named as it was before there was another.
        if key == METHOD.setting or (key, value) == ("method.hash", "fixed"):
            continue
        label = f"local_{name}" if section == "local" else name
        shown = f"{value:g}" if isinstance(value, float) else f"{value}"
        parts.append(f"{label}{shown}" if isinstance(value, int | float) else f"{label}-{shown}")
    return "-".join(parts).replace("/", "_").replace(":", "_")
