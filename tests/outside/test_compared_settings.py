"""In which settings the report compares runs, where parts are the user's own."""

import pytest
from outside.settings import DOWNLOAD, UPLOAD

from fetchsgd.report.settings import compared_settings, series_of, settings_line

PLAIN = {"upload.bits": 32, "download.grid": "float32"}


def test_our_quantiser_need_not_be_named():
    """Runs of before it had a name are the same runs."""
    named = compared_settings({"upload": {"quantiser": "bits", "bits": 4}})
    assert named == compared_settings({"upload": {"bits": 4}})
    assert compared_settings({"upload": {"quantiser": "bits", "bits": 32}}) == PLAIN


@pytest.mark.parametrize(
    ("config", "low_bit"),
    [({"upload": UPLOAD}, True), ({"download": DOWNLOAD}, True), ({"upload": {"bits": 32}}, False)],
    ids=str,
)
def test_numbers_of_ones_own_are_not_as_in_the_paper(config, low_bit):
    assert series_of("fetchsgd", compared_settings(config)).low_bit == low_bit


def test_a_line_names_the_quantiser_and_the_grid():
    settings = compared_settings({"upload": UPLOAD, "download": DOWNLOAD})
    keys = ["upload.quantiser", "upload.bits", "download.grid", "download.step"]
    assert settings_line(settings, keys) == (
        "quantiser=outside.ternary:Ternary, grid=outside.dyadic:Dyadic, step=0.000244141"
    )
    ours = compared_settings({"download": {"grid": "steps", "step": 0.25}})
    assert settings_line(ours, keys) == "bits=32, step=0.25"


@pytest.mark.parametrize(
    "config",
    [
        {"download": {"grid": "mine:Grid", "step": 3, "log": 2}},
        {"method": {"name": "mine:Method", "window": 3, "tau": 0.1}},
        {"task": {"name": "mine:task", "alpha": 0.3}},
    ],
    ids=str,
)
def test_options_of_ones_own_parts_are_compared(config):
    """Though ours have some of the same name, which mean something only beside others."""
    (section, values), *_ = config.items()
    found = compared_settings(config)
    for key in values.keys() - {"name"}:
        assert found[f"{section}.{key}"] == values[key]


def test_options_of_ours_without_effect_are_not():
    config = {
        "method": {"error": "vanilla", "window": 3, "window_form": "histogram", "window_eps": 0.1},
        "download": {"grid": "float16", "step": 0.5},
    }
    assert compared_settings(config) == {
        "upload.bits": 32, "method.error": "vanilla", "download.grid": "float16",
    }  # fmt: skip
