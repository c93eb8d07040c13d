"""Presets: settings that belong together."""

from dataclasses import replace

import pytest
from tinytask import tiny

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import merge, resolve
from fetchsgd.runs.settings.presets import PRESETS, preset
from fetchsgd.server.schedule import Schedule

TINY = {"task": {"name": "tinytask:tiny"}}


def test_each_can_be_trained_with_and_says_what_it_is():
    named = {name: resolve(merge(preset(name), TINY)) for name in PRESETS}
    assert named["paper"].settings["method"]["hash"] == "fixed"
    assert named["paper"].quantiser.exact
    assert named["sums"].settings["method"]["hash"] == "fresh"
    assert named["sums"].quantiser.exact
    assert named["messages"].settings["upload"]["quantiser"] == "shared_step"
    assert {name: config.method for name, config in named.items()} == {
        "paper": "fetchsgd", "sums": "fetchsgd", "messages": "uncompressed",
        "diloco": "uncompressed",
    }  # fmt: skip


def test_what_is_given_wins():
    config = resolve(merge(preset("messages"), TINY, {"upload": {"density": 0.5}}))
    assert config.settings["upload"]["density"] == 0.5


FIXED = {"method": {"hash": "fixed"}}


@pytest.mark.parametrize(
    ("given", "sets", "grid"),
    [
        ({}, [], "steps"),
        ({"method": {"hash": "fresh", "k": 500}}, [], "steps"),
        ({}, ["grid=float32"], "float32"),
        ({"download": {"grid": "float32"}}, [], "float32"),
        (FIXED, [], "float32"),
        ({}, ["hash=fixed"], "float32"),
        (FIXED, ["method.hash=fresh"], "steps"),
        ({}, ["hash=fixed", "method.hash=fresh"], "steps"),
        ({}, ["hash=fixed", "download.grid=steps"], "steps"),
        ({"method": {"name": "uncompressed"}}, [], "float32"),
        ({}, ["method.name=true_topk"], "float32"),
    ],
    ids=str,
)
def test_weights_are_at_whole_steps_where_all_of_them_may_move(given, sets, grid):
    assert resolve(given, sets).settings["download"]["grid"] == grid


def test_a_task_suggests_to_the_paper_s_form_what_it_alone_has():
    assert resolve({}).method_options["k"] == 0
    for given, sets in ((FIXED, []), ({}, ["hash=fixed"]), (preset("paper"), [])):
        options = resolve(given, sets).method_options
        assert (options["k"], options["cols"]) == (500, 8000)  # cols as for either form
    assert resolve(FIXED, ["k=3"]).method_options["k"] == 3


def hashed(seed=0):
    """A task that wants to choose the form of the method."""
    own = {"methods": {"fetchsgd": {"hash": "fixed", "k": 3, "cols": 9}}}
    return replace(tiny(seed), preset=own)


def test_a_task_must_not_choose_the_form():
    with pytest.raises(UserError, match=r"must not set method.hash.*part .*'fetchsgd-paper'"):
        resolve({"task": {"name": f"{__name__}:hashed"}})
    assert resolve({"task": {"name": f"{__name__}:hashed"}, "method": {"name": "uncompressed"}})


def test_the_default_is_what_the_preset_for_sums_says():
    assert resolve({}).settings == resolve(preset("sums")).settings


def test_a_hash_of_another_method_is_none_of_ours():
    with pytest.raises(UserError, match="no setting 'hash': true_topk has no option 'hash'"):
        resolve({"method": {"name": "true_topk"}}, ["hash=fixed"])


def test_a_wrong_name_gets_a_hint():
    with pytest.raises(UserError, match="there is no preset 'mesages'; did you mean 'messages'"):
        preset("mesages")


def test_a_task_suggests_a_step_to_runs_that_have_steps():
    assert resolve({}).settings["download"]["step"] == 1.0
    assert "step" not in resolve({"method": {"name": "uncompressed"}}).settings["download"]
    given = merge(preset("messages"), {"download": {"step": 0.25}})
    assert resolve(given).settings["download"]["step"] == 0.25


def rated(seed=0):
    """A task that knows a rate for each form."""
    known = {"uncompressed": 0.3, "messages": 0.2, "fetchsgd": 0.1}
    own = {form: {"schedule": {"peak": peak}} for form, peak in known.items()}
    own["messages"]["download"] = {"step": 4.0, "by_size": True}
    own["fetchsgd"]["cols"] = 9
    return replace(tiny(seed), preset={"methods": own})


LEVELS = {"upload": {"quantiser": "shared_step"}}


@pytest.mark.parametrize(
    ("given", "sets", "peak"),
    [
        (preset("messages"), [], 0.2),
        ({"method": {"name": "uncompressed"}, **LEVELS}, [], 0.2),
        ({"method": {"name": "uncompressed"}}, ["quantiser=shared_step"], 0.2),
        (preset("messages"), ["peak=0.7"], 0.7),
        ({"method": {"name": "uncompressed"}}, [], 0.3),
        (preset("messages"), ["quantiser=step"], 0.3),
        ({}, [], 0.1),
        (LEVELS, [], 0.1),
        (preset("messages"), ["method.name=true_topk", "k=3"], Schedule.peak),
    ],
    ids=str,
)
def test_a_task_suggests_to_the_preset_messages_what_it_alone_has(given, sets, peak):
    config = resolve(merge(given, {"task": {"name": f"{__name__}:rated"}}), sets)
    assert config.schedule.peak == peak
    levels, download = config.settings["upload"]["quantiser"], config.settings["download"]
    if config.method == "uncompressed" and download["grid"] == "steps":
        assert download["by_size"] == (levels == "shared_step")


def test_without_a_grid_of_steps_its_options_are_not_suggested():
    given = merge(preset("messages"), {"task": {"name": f"{__name__}:rated"}})
    assert resolve(given, ["grid=float32"]).settings["download"] == {"grid": "float32"}


def test_a_task_that_suggests_what_nothing_has_is_told():
    with pytest.raises(UserError, match="no setting download.stepp; did you mean 'step'"):
        resolve(merge(preset("messages"), {"task": {"name": "tinytask:misspelt"}}))
