"""Every mistake is a sentence, before any work starts."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.toml_files import write_toml
from fetchsgd.simulate import Run

TINY = {"task": {"name": "tinytask:tiny"}}


@pytest.mark.parametrize(
    ("given", "sets", "message"),
    [
        ({"task": {"name": "digit"}}, [], "there is no task 'digit'; did you mean 'digits'"),
        ({"task": {"name": "nowhere:f"}}, [], "cannot import 'nowhere'; is it on the path"),
        ({"task": {"name": "tinytask:nothing"}}, [], "tinytask has no function 'nothing'"),
        ({"method": {"name": "fetchsdg"}}, [], "no method 'fetchsdg'; did you mean 'fetchsgd'"),
        ({"methods": {}}, [], r"no section \[methods\]; did you mean 'method'"),
        ({"train": 3}, [], "'train' must be a section"),
        ({"train": {"epoch": 1}}, [], "no setting train.epoch; did you mean 'epochs'"),
        (
            {"task": {"name": "tinytask:tiny", "client": 3}},
            [],
            "no setting task.client; did you mean",
        ),
        ({}, ["epohcs=3"], "no setting 'epohcs'; did you mean 'epochs'"),
        ({}, ["k"], "'k' is not of the form key=value"),
        ({}, ["momentun.k=1"], "no section 'momentun'"),
        ({}, ["epochs=ten"], "train.epochs must be a number, got 'ten'"),
        ({}, ["epochs=0"], "train.epochs must be above 0, got 0.0"),
        ({}, ["clients_per_round=13"], "from 1 to the task's 12 clients, got 13"),
        ({}, ["clients_per_round=2.5"], "train.clients_per_round must be a whole number, got 2.5"),
        ({}, ["sampling=random"], "train.sampling must be one of 'epoch', 'uniform', got 'random'"),
        ({}, ["mask_momentum=1"], "method.mask_momentum must be true or false, got 1"),
        ({}, ["error_reset=none"], "must be one of 'zero', 'subtract', got 'none'"),
        ({}, ["kind=cosine"], "schedule.kind must be one of triangular, .*got 'cosine'"),
        ({}, ["kind=triangular", "pivot=5"], "pivot must be from 0 to train.baseline_epochs = 3"),
        ({}, ["kind=piecewise"], r"schedule.points must be pairs .* got \[\]"),
        ({}, ["batch_size=3"], "local.batch_size has no effect unless local.epochs >= 1, got 3"),
        ({}, ["seed=-1"], "train.seed must be from 0"),
        ({"method": {"name": "fedavg"}}, ["local.epochs=0"], "fedavg needs local.epochs"),
        ({}, ["task.empty_client=true"], "client 3 of the task has no data"),
    ],
)
def test_mistakes(given, sets, message):
    with pytest.raises(UserError, match=message):
        resolve({**TINY, **given}, sets)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["k=76"], "method.k must be from 1 to 75, got 76"),
        (["cols=0"], "cols must be from 1"),
        (["block=41"], "cols=40 is too small for block=41"),
        (["device=cuda:9"], "train.device is 'cuda:9', but torch finds no CUDA device"),
        (["device=tpu"], "train.device must be auto, cpu or cuda, got 'tpu'"),
    ],
)
def test_mistakes_that_only_the_model_shows(sets, message):
    with pytest.raises(UserError, match=message):
        Run(resolve(TINY, sets))


def test_layers():
    """Defaults, then the task's preset, its preset for the method, the file, --set."""
    config = resolve({**TINY, "method": {"name": "fetchsgd", "cols": 30}}, ["method.k=7"])
    assert config.method_options["k"] == 7
    assert config.method_options["cols"] == 30
    assert config.method_options["momentum"] == 0.9
    assert config.train.clients_per_round == 4
    assert config.train.baseline_epochs == config.train.epochs == 3.0
    assert resolve({**TINY, "method": {"name": "fedavg"}}).local.epochs == 1


def test_short_keys_mean_the_likelier_section():
    config = resolve(TINY, ["peak=0.5", "epochs=2", "local.epochs=1"])
    assert (config.schedule.peak, config.train.epochs, config.local.epochs) == (0.5, 2.0, 1)


def test_resolved_settings_resolve_to_themselves():
    config = resolve(TINY, ["method.k=7"])
    again = resolve(tomllib.loads(write_toml(config.settings)))
    assert again.settings == config.settings


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.one_of(
            st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False),
            st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
            st.lists(st.lists(st.floats(-1e9, 1e9), max_size=3), max_size=3),
        ),
    )
)  # fmt: skip
def test_toml_is_written_as_it_is_read(values):
    assert tomllib.loads(write_toml({"train": values})) == {"train": values}
