"""Mistakes as a stranger makes them: a sentence that helps, and the right exit code."""

import os
import resource
from contextlib import contextmanager

import pytest

from fetchsgd.quantisers import Bits
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.toml_files import write_toml

TINY = "tinytask:tiny"
USERS, MACHINES = 2, 4


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


SETTINGS = [
    ("bits=2.5", "upload.bits must be one of 32, 16, 8, 6, 4, 3, 2, got 2.5"),
    ("lr=0.1", "there is no setting 'lr': here it is schedule.peak, the largest learning rate"),
    ("momentum=2", "method.momentum must be from 0 to 1, got 2.0"),
    ("k=10.5", "method.k must be a whole number, got 10.5"),
    ("k=", "method.k must be a whole number, got ''"),
    ("k", "--set 'k' is not of the form key=value"),
    ("cols=99999999999", "method.cols must be from 1 to"),
    ("sketch_seed=-1", "method.sketch_seed must be from 0 to 2^64 - 1, got -1"),
    ("epochs=abc", "train.epochs must be a number, got 'abc'"),
    ("peak=inf", "schedule.peak must be a finite number, got inf"),
    ("device=tpu", "train.device must be auto, cpu or cuda, got 'tpu'"),
    ("train.kind=constant", "there is no setting train.kind; did you mean 'schedule.kind'?"),
    ("clients_per_round=99", "must be from 1 to the task's 12 clients, got 99"),
    ("quantiser=bitz", "there is no quantiser 'bitz'; did you mean 'bits'?"),
    (
        "batch_size=8",
        "local.batch_size has no effect unless local.epochs >= 1 or local.steps >= 1, got 8",
    ),
]


@pytest.mark.parametrize(("setting", "sentence"), SETTINGS, ids=[each[0] for each in SETTINGS])
def test_settings(setting, sentence, here, tmp_path):
    code, _, err = here("train", TINY, "--set", setting)
    assert code == USERS
    assert sentence in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "budget", "sentence"),
    [
        ("fetchsgd", "100000x", "--budget of 0 bytes cannot be met: a table has a column"),
        ("fetchsgd", "66", "that takes 68 bytes (4.41x) at least"),
        ("true_topk", "70", "--budget of 70 bytes cannot be met: true_topk sends all 75 weights"),
        ("local_topk", "1", "of 1 byte cannot be met: a client sends one coordinate or more"),
        ("local_topk", "1", "a compression is written with an x, as 100x"),
    ],
)
def test_budgets_that_cannot_be_met(method, budget, sentence, here):
    code, _, err = here("train", TINY, "--method", method, "--budget", budget)
    assert code == USERS
    assert sentence in err


def test_two_bits_are_two_however_a_file_writes_them():
    """In Python 2.0 is refused: there it is the wrong type."""
    settings = resolve({"task": {"name": TINY}}, ["bits=2.0"]).settings
    assert "bits = 2\n" in write_toml({"upload": settings["upload"]})
    with pytest.raises(ValueError, match=r"bits must be one of .*, got 2\.0"):
        Bits(2.0)


def test_a_table_wider_than_the_model_is_noted(here):
    code, out, _ = here("train", TINY, "--set", "cols=76", "--epochs", 1)
    assert code == 0
    assert "note: the table (1 x 76 cells) is no smaller than the model (75 weights)" in out


OWN = """
from tinytask import PRESET, tiny

def bare(clients, seed=0):
    return tiny(seed, clients)
"""


def test_an_option_without_a_default(here, tmp_path, monkeypatch):
    (tmp_path / "own_bare.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = here("train", "own_bare:bare")
    assert code == USERS
    assert "task.clients must be given: own_bare:bare has no default for it" in err
    assert "add --set task.clients=..., or a line in the section [task] of a file" in err


FILES = [
    ("[train", "is not valid TOML"),
    ("epochs = 3", "epochs = 3 stands in no section; put it below [train]"),
    ("[trian]\nepochs = 3", "there is no section [trian]; did you mean 'train'?"),
    ("[train]\nepochs = [3]", "train.epochs must be a number, got [3]"),
]


@pytest.mark.parametrize(("content", "sentence"), FILES)
def test_files(content, sentence, here, tmp_path):
    (tmp_path / "run.toml").write_text(content)
    code, _, err = here("train", "run.toml")
    assert code == USERS
    assert sentence in err


SWEEPS = [
    ('[[sweep]]\n"method.k" = []', "method.k = [] in [[sweep]] makes no run; give it a value"),
    ("[[sweep]]\nmethod.k = [1]", 'write method in [[sweep]] as "method.k", in quotes'),
    ("[[sweep]]\nk = [1]", 'write k in [[sweep]] as "section.k", in quotes'),
    ('[[sweep]]\n"method.k" = [5, 5]', "has two runs 'fetchsgd-k5'; they differ in nothing"),
    ('[sweep]\n"method.k" = [5]', "write [[sweep]] with two brackets"),
    ("", "has no [[sweep]] entries"),
]


@pytest.mark.parametrize(("content", "sentence"), SWEEPS)
def test_sweeps(content, sentence, here, tmp_path):
    (tmp_path / "s.toml").write_text(f'[task]\nname = "{TINY}"\n{content}\n')
    code, _, err = here("sweep", "s.toml", "--out", "out")
    assert code == USERS
    assert sentence in err
    assert not (tmp_path / "out").exists()


@contextmanager
def as_nobody():
    """Root may read everything; others may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_of_data_that_may_not_be_read(here, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    with as_nobody():
        code, _, err = here("train", "cifar10", "--set", f"folder={closed / 'data'}")
    assert code == MACHINES
    assert "error: the data of the task 'cifar10' cannot be read" in err
    assert "Permission denied" in err


def test_a_full_disk(here, tmp_path):
    """A limit on the size of files, as a full disk leaves it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        code, _, err = here("train", TINY, "--out", "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == MACHINES
    assert "error: cannot write run/config.toml" in err
    assert "File too large" in err
    assert not list(tmp_path.glob("run/*.partial"))


def test_a_folder_that_does_not_exist_is_the_users_mistake(here):
    code, _, err = here("train", "cifar10", "--set", "folder=/nowhere")
    assert code == USERS
    assert "there is no folder /nowhere; task.folder must name the folder of CIFAR10's" in err
    code, _, err = here("report", "nowhere")
    assert code == USERS
    assert "nowhere: no such folder, and not a .jsonl file of results" in err
