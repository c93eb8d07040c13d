"""What `fetchsgd settings` says is what the program does, and the same text everywhere."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from fetchsgd.cli.settings import page
from fetchsgd.errors import UserError
from fetchsgd.runs.recorder import open_folder
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.settings.meanings import MEANINGS, Meaning, meaning_of
from fetchsgd.runs.settings.reference import entries_of, look_up, reference
from fetchsgd.runs.settings.sections import SECTIONS
from fetchsgd.runs.settings.synonyms import SYNONYMS
from fetchsgd.simulation.sweep import check_run
from fetchsgd.sums import Modular

ROOT = Path(__file__).parents[2]
TABLES = [table for section in SECTIONS for table in reference(section)]
ENTRIES = [entry for table in TABLES for entry in table.entries]
SUM_OPTIONS = {field.name for field in fields(Modular)}


def test_every_setting_has_a_meaning_and_every_meaning_a_setting():
    assert [entry.name for entry in ENTRIES if not entry.meaning.text] == []
    assert set(MEANINGS) == {entry.name for entry in ENTRIES}


def test_the_page_is_current():
    assert page() == (ROOT / "docs/settings.md").read_text(), (
        "write it anew: fetchsgd settings --markdown > docs/settings.md"
    )


# What gives a setting its effect, where it has none by default.
BY_ADAMW = {"local": {"steps": 1, "optimizer": "adamw"}}
BY_CHUNKS = {"method": {"name": "sparse_loco", "per_chunk": 1}, "local": {"steps": 1}}
WITH = {
    "method.window_eps": {"method": {"hash": "fixed"}},
    "method.local_momentum": {"method": {"name": "local_topk"}},
    "method.window": {"method": {"hash": "fixed", "error": "window"}},
    "method.tau": {"method": {"hash": "fixed", "recovery": "threshold"}},
    "schedule.pivot": {"schedule": {"kind": "triangular"}},
    "local.batch_size": {"local": {"epochs": 1}},
    "local.lr_decay": {"local": {"epochs": 1}},
    "local.momentum": {"local": {"epochs": 1}},
    "local.outer_rate": {"local": {"epochs": 1}},
    **{f"local.{key}": BY_ADAMW for key in ("beta1", "beta2", "eps")},
    **{f"method.{key}": BY_CHUNKS for key in ("chunk", "per_chunk", "error_decay")},
    "upload.tau": {"upload": {"quantiser": "step"}},
    "upload.bytes": {"upload": {"quantiser": "step"}},
    "upload.density": {"upload": {"quantiser": "shared_step"}},
    "upload.rate": {"upload": {"quantiser": "eden"}},
    "download.step": {"download": {"grid": "steps"}},
    "download.log": {"download": {"grid": "steps"}},
    "merge.groups": {"merge": {"name": "median"}},
    "merge.clip": {"merge": {"name": "median"}},
    "merge.liars": {"merge": {"name": "trimmed"}},
    "merge.odds": {"merge": {"name": "vetted"}},
    "attack.after": {"attack": {"name": "flip"}},
    "attack.apart": {"attack": {"name": "collude"}},
    "attack.share": {"attack": {"name": "flip"}},
    "attack.seed": {"attack": {"name": "flip"}},
}
ENDS = {"the number of weights": 75, "the task's clients": 12, "train.baseline_epochs": 3.0}
RANGES = {
    entry.name: entry
    for entry in ENTRIES
    if entry.meaning.range and not entry.name.startswith("task.")
}


def outside(entry):
    """Values that must be refused."""
    whole, meaning = entry.kind == "a whole number", entry.meaning
    step = 1 if whole else 1e-6
    if meaning.low is not None:
        yield meaning.low if meaning.above else meaning.low - step * max(meaning.low, 1)
    high = ENDS.get(meaning.high, meaning.high)
    if isinstance(high, float | int):
        yield high if meaning.below else high + step * max(high, 1)


def inside(entry):
    """The ends themselves, where they are told as allowed."""
    meaning = entry.meaning
    if meaning.low is not None and not meaning.above:
        yield meaning.low
    high = ENDS.get(meaning.high, meaning.high)
    if isinstance(high, float | int) and not meaning.below:
        yield high


def check(name, value, made={}):  # noqa: B006 (so that the task is made once)
    section, key = name.split(".")
    sums = {"upload": {"sum": "modular"}} if key in SUM_OPTIONS and section == "upload" else {}
    given = {"task": {"name": "tinytask:tiny"}, **sums, **WITH.get(name, {})}
    given[section] = {**given.get(section, {}), key: value}
    return check_run("run", given, made)


@pytest.mark.parametrize("name", RANGES)
def test_the_range_that_is_told_is_the_one_that_is_checked(name):
    whole = RANGES[name].kind == "a whole number"
    for value in outside(RANGES[name]):
        with pytest.raises(UserError, match=name.split(".")[1]):
            check(name, int(value) if whole else value)
    for value in inside(RANGES[name]):
        if (name, value) not in {("method.window", 0), ("method.tau", 0), ("method.cols", 1)}:
            check(name, int(value) if whole else value)


def test_a_range_in_words():
    assert Meaning("", 0, above=True).range == "above 0"
    assert Meaning("", 1, "the number of weights").range == "from 1 to the number of weights"
    assert Meaning("", 0, 1, above=True).range == "above 0 and at most 1"
    assert Meaning("", 2**-10, 2**20).range == "from 2^-10 to 2^20"
    assert Meaning("").range == ""


def test_config_toml_says_what_its_settings_mean(tmp_path):
    config = resolve({"task": {"name": "tinytask:tiny"}})
    open_folder(tmp_path, config, resume=False)
    text = (tmp_path / "config.toml").read_text()
    assert tomllib.loads(text) == config.settings
    for name, entry in entries_of(config.settings).items():
        if not name.startswith("task."):
            key = name.split(".")[1]
            assert f"# {entry}\n{key} = " in text


@dataclass(frozen=True)
class Own:
    """A part of one's own.

    rho: how much is kept
        from round to round.
    k: how many.
    """

    rho: float = 0.5
    k: int = 3
    unsaid: int = 1


def test_ones_own_part_tells_its_options_in_its_docstring():
    assert meaning_of("method", "rho", Own).text == "how much is kept from round to round"
    assert meaning_of("method", "k", Own).text == "how many"
    assert meaning_of("method", "unsaid", Own).text == ""


def test_a_setting_is_looked_up_by_any_of_its_names():
    assert [table.entries[0].name for table in look_up("train.epochs")] == ["train.epochs"]
    assert {table.entries[0].name for table in look_up("epochs")} == {
        "train.epochs",
        "local.epochs",
    }
    assert look_up("train")[0].entries[0].name == "train.epochs"
    with pytest.raises(UserError, match="here it is schedule.peak, the largest learning rate"):
        look_up("learning-rate")
    with pytest.raises(UserError, match="did you mean 'schedule'"):
        look_up("shedule")


def test_what_others_call_our_settings():
    names = {entry.name for entry in ENTRIES}
    assert set(SYNONYMS.values()) <= names
    ours = {entry.key.replace("_", "") for entry in ENTRIES} - {"model"}
    assert not ours & set(SYNONYMS) - {"model"}
    for wrong, right in (
        ("lr=0.1", "schedule.peak"),
        ("num-clients=5", r"train.clients_per_round.*\(how many clients there are follows"),
        ("rounds=5", "train.epochs.*rounds follow from epochs"),
        ("train.topk=5", "method.k"),
        ("train.peak=5", "did you mean 'schedule.peak'"),
    ):
        with pytest.raises(UserError, match=right):
            resolve({"task": {"name": "tinytask:tiny"}}, [wrong])
