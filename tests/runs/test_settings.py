"""Every mistake is a sentence, before any work starts."""

import sys
import tomllib

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.toml_files import read_toml, write_toml
from fetchsgd.simulation import Run

TINY = {"task": {"name": "tinytask:tiny"}}


ADAMW = ["local.steps=2", "optimizer=adamw"]


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
        ({}, ["upload.densty=1"], "did you mean 'density', which upload.quantiser = 'shared_step'"),
        ({}, ["densty=1"], "did you mean 'density', which upload.quantiser = 'shared_step' has"),
        ({}, ["k"], "'k' is not of the form key=value"),
        ({}, ["momentun.k=1"], "no section 'momentun'"),
        ({}, ["epochs=ten"], "train.epochs must be a number, got 'ten'"),
        ({}, ["epochs=0"], "train.epochs must be above 0, got 0.0"),
        ({}, ["clients_per_round=13"], "from 1 to the task's 12 clients, got 13"),
        ({}, ["clients_per_round=2.5"], "train.clients_per_round must be a whole number, got 2.5"),
        (
            {},
            ["sampling=random"],
            "train.sampling must be one of 'epoch', 'uniform', 'poisson', 'stay', got 'random'",
        ),
        ({}, ["mask_momentum=1"], "method.mask_momentum must be true or false, got 1"),
        ({}, ["error_reset=none"], "must be one of 'zero', 'subtract', got 'none'"),
        ({}, ["kind=cosine"], "schedule.kind must be one of triangular, .*got 'cosine'"),
        ({}, ["kind=triangular", "pivot=5"], "pivot must be from 0 to train.baseline_epochs = 3"),
        ({}, ["kind=piecewise"], r"schedule.points must be pairs .* got \[\]"),
        (
            {},
            ["batch_size=3"],
            "local.batch_size has no effect unless local.epochs >= 1 or local.steps",
        ),
        (
            {},
            ["optimizer=adamw"],
            "local.optimizer has no effect unless local.epochs >= 1 or local",
        ),
        (
            {},
            ["outer_rate=0.5"],
            "local.outer_rate has no effect unless local.epochs >= 1 or local",
        ),
        ({}, ["steps=2", "beta2=0.95"], "local.beta2 needs local.optimizer = 'adamw', got 0.95"),
        ({}, [*ADAMW, "local.momentum=0.9"], "local.momentum is of SGD; with local.optimizer = "),
        ({}, [*ADAMW, "beta1=1"], "local.beta1 must be at least 0 and below 1, got 1.0"),
        ({}, [*ADAMW, "eps=0"], "local.eps must be above 0, got 0.0"),
        ({}, ["steps=-1"], "local.steps must be at least 0, got -1"),
        ({}, ["steps=2", "state=keep"], "local.state = 'keep' needs local steps by an optimiser"),
        ({}, ["steps=2", "outer_rate=0"], "local.outer_rate must be above 0, got 0.0"),
        ({}, ["leaving=2", "leave_every=3"], "train.leaving needs train.sampling = 'stay'"),
        ({}, ["sampling=stay", "leaving=2"], "train.leaving and train.leave_every go together"),
        ({}, ["sampling=stay", "leaving=5"], "train.leaving must be from 0 to .* = 4, got 5"),
        (
            {},
            ["sampling=stay", "privacy.mode=central", "privacy.noise=1.0"],
            "train.sampling = 'stay' draws nobody, so there is nothing for privacy to gain",
        ),
        ({}, ["nesterov=true", "diagnose=true"], "train.diagnose follows a plain momentum"),
        ({}, ["seed=-1"], "train.seed must be from 0"),
        ({"method": {"name": "fedavg"}}, ["local.epochs=0"], "fedavg needs local.epochs"),
        ({}, ["task.empty_client=true"], "client 3 of the task has no data"),
        ({"task": 3}, [], "'task' must be a section"),
        ({"method": {"kk": 3}}, [], "no setting method.kk; did you mean 'k'"),
        (
            {"method": {"name": "true_topk", "cols": 3}},
            [],
            "no setting method.cols: true_topk has no option 'cols', fetchsgd has",
        ),
        (
            {"method": {"name": "fedavg"}},
            ["k=3"],
            "no setting 'k': fedavg has no option 'k', fetchsgd, local_topk, true_topk have",
        ),
        ({}, ["bits=true"], "upload.bits must be one of 32, 16, .*, got True"),
        ({}, ["bits=2.5"], "upload.bits must be one of 32, 16, .*, got 2.5"),
        ({}, ["k=inf"], "method.k must be a whole number, got inf"),
        ({}, ["k=nan"], "method.k must be a whole number, got nan"),
        ({}, ["seed=-inf"], "train.seed must be a whole number, got -inf"),
        ({}, ["peak=nan"], "schedule.peak must be a number, got nan"),
        ({}, ["peak=true"], "schedule.peak must be a number, got True"),
        ({}, ["epochs=inf"], "train.epochs must be a finite number, got inf"),
        ({}, ["average=1"], "train.average must be at least 0 and below 1, got 1"),
        ({}, ["eval_every=inf"], "train.eval_every must be a finite number, got inf"),
        ({}, [f"epochs=1{'0' * 400}"], "train.epochs must be below 1.8e308"),
        ({}, ["kind=piecewise", "points=[1, 2]"], r"schedule.points\[0\] must be a list, got 1"),
        (
            {},
            ["kind=piecewise", 'points=[[0, "fast"]]'],
            r"schedule.points\[0\]\[1\] must be a number, got 'fast'",
        ),
        ({}, ["kind=piecewise", "points=[[0, nan]]"], r"points\[0\]\[1\] must be a number"),
        ({}, ["kind=piecewise", "points=[[0, inf]]"], r"schedule.points must be pairs"),
        ({}, ["points=3"], "schedule.points must be a list, got 3"),
    ],
)
def test_mistakes(given, sets, message):
    with pytest.raises(UserError, match=message):
        resolve({**TINY, **given}, sets)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["k=76"], "method.k must be from 0 to 75, got 76"),
        (["cols=0"], "cols must be from 1"),
        (["nesterov=true", "momentum=0"], "method.nesterov needs a method.momentum above 0"),
        (["nesterov=true", "hash=fixed"], "method.nesterov = True needs method.hash = 'fresh'"),
        (["quantiser=two_bits"], "rounds to the nearest, which is not right in the mean, and the "),
        (
            ["sampling=stay", "leaving=4", "leave_every=1", "epochs=4"],
            "train.leaving = 4 every 1 rounds takes 16 clients in 4 rounds, and there are 12",
        ),
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


def test_a_choice_is_given_as_the_type_of_the_choice():
    bits = resolve(TINY, ["bits=2.0"]).settings["upload"]["bits"]
    assert (bits, type(bits)) == (2, int)


def test_short_keys_mean_the_likelier_section():
    config = resolve(TINY, ["peak=0.5", "epochs=2", "local.epochs=1"])
    assert (config.schedule.peak, config.train.epochs, config.local.epochs) == (0.5, 2.0, 1)


def test_names_may_be_given_with_set():
    """They decide which other keys there are."""
    config = resolve(
        {"task": {"name": "digits"}},
        ["local_momentum=0.5", "method.name=local_topk", "task.name=tinytask:tiny"],
    )
    assert config.method == config.settings["method"]["name"] == "local_topk"
    assert config.method_options["local_momentum"] == 0.5
    assert config.task.name == "tiny"


OWN_PARTS = """
from dataclasses import dataclass, replace
from fetchsgd.methods import Uncompressed
from tinytask import tiny

def no_defaults(seed, folder):
    assert folder == "here"
    return tiny(seed)

def both_forms(seed):
    forms = {
        "fetchsgd": {"k": 3, "cols": 9, "momentum": 0.5},
        "fetchsgd-paper": {"k": 5, "cols": 7},
    }
    return replace(tiny(seed), preset={**tiny(seed).preset, "methods": forms})

def all_kinds(seed, subset=None, label="", sizes=[1], table={}):
    return tiny(seed)

def without_a_seed(clients=3):
    return tiny(0, clients)

def no_task(seed):
    return "a text"

def names_a_method(seed):
    return replace(tiny(seed), preset={"method": {"name": "fedavg"}})

@dataclass(frozen=True)
class Scaled(Uncompressed):
    factor: float = 1.0
    limit: int | None = None

@dataclass(frozen=True)
class WithSteps(Uncompressed):
    needs_local_steps = True

class Plain:
    pass

@dataclass(frozen=True)
class Picky:
    dim: int
    amount: float
"""


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    """A module of the user's, in the folder that they are in."""
    (tmp_path / "own_parts.py").write_text(OWN_PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_parts", None)


def test_a_method_of_the_users_own_trains(own_parts, tmp_path):
    given = {**TINY, "method": {"name": "own_parts:Scaled"}}
    config = resolve(given, ["factor=2", "momentum=0"])
    assert config.method == "own_parts:Scaled"
    expected = {"momentum": 0.0, "nesterov": False, "factor": 2.0, "limit": None}
    assert config.method_options == expected
    result = Run(config).execute(tmp_path / "run")
    assert result["method"] == "own_parts:Scaled"
    assert resolve(read_toml(tmp_path / "run" / "config.toml")).settings == config.settings
    assert resolve(given, ["limit=3"]).method_options["limit"] == 3


@pytest.mark.parametrize(
    ("given", "sets", "message"),
    [
        ({"method": {"name": "own_parts:Plain"}}, [], "method.name = .* must name a dataclass"),
        ({"method": {"name": "own_parts:no_task"}}, [], "'no_task' in own_parts must be a class"),
        ({"method": {"name": "own_parts:Nothing"}}, [], "own_parts has no class 'Nothing'"),
        ({"method": {"name": "own_parts:Picky"}}, [], "method.amount must be given: own_parts:Pic"),
        ({"method": {"name": "own_parts:Scaled"}}, ["limit=2.5"], "limit must be a whole number"),
        ({"method": {"name": "own_parts:Scaled"}}, ["facto=2"], "'facto'; did you mean 'factor'"),
        (
            {"method": {"name": "own_parts:WithSteps"}},
            [],
            "own_parts:WithSteps needs local.epochs of at least 1",
        ),
        ({"method": {"name": "own_parts:Scaled"}}, ["diagnose=true"], "only fetchsgd and true_top"),
        ({"task": {"name": "own_parts:no_defaults"}}, [], "task.folder must be given: own_parts"),
        ({"task": {"name": "own_parts:without_a_seed"}}, [], "unexpected keyword argument 'seed'"),
        ({"task": {"name": "own_parts:no_task"}}, [], "must return a fetchsgd.tasks.Task, got 'a"),
        (
            {"task": {"name": "own_parts:names_a_method"}},
            ["k=3", "cols=9"],
            "the preset of the task 'tiny' must not set method.name",
        ),
        ({"task": {"name": ":f"}}, [], "'' is not the name of a module"),
        ({"task": {"name": "own_parts:all_kinds"}}, ["sizes=3"], "task.sizes must be a list, got"),
    ],
)
def test_mistakes_in_parts_of_the_users_own(given, sets, message, own_parts):
    with pytest.raises(UserError, match=message):
        resolve({**TINY, **given}, sets)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], (3, 9, 0.5)),
        (["hash=fixed"], (5, 7, 0.9)),
        (["hash=fixed", "k=6"], (6, 7, 0.9)),
        (["hash=fixed", "method.hash=fresh"], (3, 9, 0.5)),
    ],
)
def test_a_task_may_suggest_something_else_to_each_form_of_fetchsgd(sets, expected, own_parts):
    options = resolve({"task": {"name": "own_parts:both_forms"}}, sets).method_options
    assert (options["k"], options["cols"], options["momentum"]) == expected


def test_a_task_without_defaults_works_when_all_is_given(own_parts):
    given = {"task": {"name": "own_parts:no_defaults"}}
    config = resolve(given, ["folder=here", "k=3", "cols=9"])
    assert config.settings["task"] == {"name": "own_parts:no_defaults", "folder": "here"}


def test_resolved_settings_resolve_to_themselves():
    config = resolve(TINY, ["method.k=7"])
    again = resolve(tomllib.loads(write_toml(config.settings)))
    assert again.settings == config.settings


TEXTS = st.text(max_size=20)
PLAIN = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), TEXTS)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.none(), PLAIN, st.lists(PLAIN)), TEXTS, st.lists(PLAIN),
    st.dictionaries(TEXTS, PLAIN), st.integers(1, 75), st.floats(1e-9, 1e9),
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=3),
)  # fmt: skip
def test_all_settings_are_read_back(own_parts, subset, label, sizes, table, k, step, points):
    task = {"name": "own_parts:all_kinds", "label": label, "sizes": sizes, "table": table}
    config = resolve(
        {
            "task": task if subset is None else task | {"subset": subset},
            "method": {"k": k, "cols": 9},
            "schedule": {"kind": "piecewise", "points": sorted(map(list, points))},
            "download": {"grid": "steps", "step": step},
        }
    )
    assert resolve(tomllib.loads(write_toml(config.settings))).settings == config.settings
