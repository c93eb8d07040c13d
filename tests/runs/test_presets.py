"""Presets: settings that belong together."""

import pytest

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import merge, resolve
from fetchsgd.runs.settings.presets import PRESETS, preset

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


def test_a_wrong_name_gets_a_hint():
    with pytest.raises(UserError, match="there is no preset 'mesages'; did you mean 'messages'"):
        preset("mesages")


def test_a_task_suggests_a_step_to_runs_that_have_steps():
    assert resolve(preset("messages")).settings["download"]["step"] == 1.0
    assert "step" not in resolve({"method": {"name": "uncompressed"}}).settings["download"]
    given = merge(preset("messages"), {"download": {"step": 0.25}})
    assert resolve(given).settings["download"]["step"] == 0.25


def test_a_task_that_suggests_what_nothing_has_is_told():
    with pytest.raises(UserError, match="no setting download.stepp; did you mean 'step'"):
        resolve(merge(preset("messages"), {"task": {"name": "tinytask:misspelt"}}))
