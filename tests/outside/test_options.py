"""Options of parts from outside the package are checked as ours are, with a sentence."""

import pytest
from outside.settings import AS_TEXT, GIVEN, given

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.simulation.sweep import plan


def test_the_command_line_and_a_file_say_the_same():
    by_text = resolve({"task": {"name": "tinytask:tiny"}}, AS_TEXT)
    assert by_text.settings == resolve(GIVEN).settings
    assert by_text.settings["upload"] == GIVEN["upload"] | {"sum": "plain"}
    assert by_text.method_options == {"k": 30, "decay": 0.5, "keep": False, "seed": 0}


def test_options_have_short_names():
    short = ["decay=0.25", "stretch=2", "step=0.5"]
    settings = resolve(GIVEN, short).settings
    assert settings["method"]["decay"] == 0.25
    assert settings["upload"]["stretch"] == 2.0
    assert settings["download"]["step"] == 0.5


MISTAKES = [
    ({"method": {"kk": 3}}, "there is no setting method.kk; did you mean 'k'"),
    ({"upload": {"strech": 3}}, "there is no setting upload.strech; did you mean 'stretch'"),
    ({"upload": {"bits": 3}}, "upload.bits: outside.ternary:Ternary has no option 'bits', bits"),
    ({"download": {"log": 3}}, "download.log: outside.dyadic:Dyadic has no option 'log', steps"),
    ({"method": {"k": "many"}}, "method.k must be a whole number, got 'many'"),
    ({"method": {"keep": 1}}, "method.keep must be true or false, got 1"),
    ({"upload": {"stretch": "wide"}}, "upload.stretch must be a number, got 'wide'"),
    ({"download": {"step": True}}, "download.step must be a number, got True"),
    ({"method": {"k": 76}}, "method.k must be from 1 to 75, got 76"),
    ({"method": {"decay": 1.0}}, "method.decay must be at least 0 and below 1, got 1.0"),
    ({"upload": {"stretch": 0.5}}, "upload.stretch must be at least 1, got 0.5"),
    ({"download": {"step": 0.3}}, "download.step must be a power of two, got 0.3"),
    ({"upload": {"quantiser": "outside.ternary:Tern"}}, "outside.ternary has no class 'Tern'"),
    ({"upload": {"quantiser": "ternary"}}, "there is no quantiser 'ternary'; known are bits"),
    ({"download": {"grid": "dyadic"}}, "there is no grid 'dyadic'; known are float32"),
    ({"download": {"grid": "outside.nowhere:X"}}, "grid 'outside.nowhere:X': cannot import"),
    ({"method": {"name": "outside.settings:given"}}, "must be a class"),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES, ids=str)
def test_mistakes_get_a_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        Setup(resolve(given(**change)))


@pytest.mark.parametrize(("change", "sentence"), MISTAKES, ids=str)
def test_a_sweep_finds_them_before_any_work(change, sentence):
    (section, values), *_ = change.items()
    entries = [{f"{section}.{key}": value for key, value in values.items()}]
    with pytest.raises(UserError, match=sentence):
        plan({**GIVEN, "sweep": entries}, "the test")


def test_no_default_is_asked_for():
    method = {"name": "outside.random_k:RandomK"}
    with pytest.raises(UserError, match="method.k must be given: outside.random_k:RandomK has no"):
        resolve({"task": {"name": "tinytask:tiny"}, "method": method})
