"""What differs between a run folder's settings and those of now."""

import copy

from fetchsgd.runs.settings import changes, resolve

NOW = resolve({"task": {"name": "tinytask:tiny"}}).settings


def before(change):
    settings = copy.deepcopy(NOW)
    change(settings)
    return settings


def test_equal_settings_have_not_changed():
    assert changes(NOW, NOW) == []


def test_a_change_is_told_with_both_values():
    old = before(lambda s: s["method"].update(k=7))
    assert changes(old, NOW) == ["method.k was 7 and is now 20"]


def test_the_device_may_differ():
    assert changes(before(lambda s: s["train"].update(device="cuda:1")), NOW) == []


def test_a_key_that_an_older_version_did_not_write_counts_as_its_default():
    floats = resolve({"task": {"name": "tinytask:tiny"}}, ["grid=float32"]).settings
    assert changes(before(lambda s: s["download"].clear()), floats) == []
    assert changes(before(lambda s: s.pop("download")), NOW) == [
        "download.grid was 'float32' and is now 'steps'"
    ]


def test_a_key_that_is_gone_counts_as_a_change():
    old = before(lambda s: s["method"].update(shape="round"))
    assert changes(old, NOW) == ["method.shape was 'round' and is no longer a setting"]


def test_options_that_an_older_version_wrote_without_effect_do_not_count():
    def add(settings):
        settings["download"] |= {"step": 0.125, "log": 256}
        del settings["upload"]["quantiser"]

    assert changes(before(add), NOW) == []
