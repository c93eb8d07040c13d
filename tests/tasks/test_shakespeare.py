"""Shakespeare: how roles become sequences, and a network whose clients' gradients take one pass."""

import json
import math

import numpy as np
import pytest
import torch

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks.shakespeare import (
    FILE,
    LENGTH,
    CharacterModel,
    alphabet_of,
    mean_loss,
    sequences_of,
    shakespeare,
)
from fetchsgd.vector import FlatModel

LINE = "To be, or not to be: that is the question!"


def write(folder, roles):
    (folder / FILE).write_text(roles if isinstance(roles, str) else json.dumps(roles))
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    roles = {
        "hamlet/HAMLET": [LINE] * 30,
        "hamlet/GHOST": ["Ay.", LINE],
        "hamlet/OPHELIA": [LINE] * 4,
    }
    return write(tmp_path, roles)


# --- data


def test_a_role_is_cut_into_sequences_that_share_a_character():
    speeches = [LINE, "Ay, marry, is't.", LINE * 4]
    alphabet = alphabet_of({"role": speeches})
    pieces = sequences_of(speeches, alphabet)
    text = "\n".join(speeches)
    letters = [[chr(alphabet[i]) for i in piece] for piece in pieces]
    assert len(pieces) == (len(text) - 1) // LENGTH
    assert all(
        "".join(piece) == text[LENGTH * i : LENGTH * (i + 1) + 1] for i, piece in enumerate(letters)
    )


@pytest.mark.parametrize("length", [0, 1, LENGTH, LENGTH + 1])
def test_what_is_too_short_for_a_sequence_gives_none(length):
    speeches = ["a" * length]
    assert len(sequences_of(speeches, alphabet_of({"role": speeches}))) == length // (LENGTH + 1)


def test_the_last_fifth_of_each_role_is_for_testing(folder):
    task = shakespeare(folder=folder, sequences_per_client=0)
    # Hamlet's 1,289 characters are 16 sequences, Ophelia's 171 two; the ghost speaks too little.
    assert task.train.sizes.tolist() == [16 - 3, 2 - 1]
    assert len(task.test_inputs) == 3 + 1
    assert torch.equal(task.train.inputs[:, 1:].long(), task.train.targets[:, :-1])
    assert shakespeare(folder=folder).train.sizes.tolist() == [8, 1]


def test_roles_are_dealt_to_workers(tmp_path):
    """Each to the one who has least; nothing is lost, and the test set stays."""
    roles = {f"play/{i}": [LINE] * (10 * i) for i in range(1, 8)}
    folder = write(tmp_path, roles)
    whole = shakespeare(folder=folder, sequences_per_client=0)
    task = shakespeare(folder=folder, sequences_per_client=0, workers=3, width=16, layers=1)
    assert task.train.sizes.sum() == whole.train.sizes.sum()
    assert task.train.sizes.max() < 1.2 * task.train.sizes.min()
    assert torch.equal(task.test_inputs, whole.test_inputs)
    rows = [sorted(map(tuple, each.train.inputs.tolist())) for each in (task, whole)]
    assert rows[0] == rows[1]
    assert len(task.model().layers) == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"workers": 3}, "task.workers must be at most the 2 roles, got 3"),
        ({"workers": -1}, "task.workers must be at least 0, got -1"),
        ({"width": 10}, "task.width must be a multiple of 4, one for each head, got 10"),
        ({"layers": 0}, "task.layers must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be(folder, option, message):
    with pytest.raises(ValueError, match=message):
        shakespeare(folder=folder, **option)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ('{"a/B": ["x",\n}', "is not JSON: .* in line 2, column 1"),
        ([], "must hold"),
        ({"a/B": "speech"}, "the speeches of 'a/B' must be a list of texts"),
        ({"a/B": [1]}, "the speeches of 'a/B' must be a list of texts"),
        ({"a/B": ["short"]}, "has no role with two sequences of 80 characters"),
        ({}, "has no role with two sequences"),
    ],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path, roles, message):
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "shakespeare", "folder": write(tmp_path, roles)}})


def test_a_missing_file_and_a_wrong_option_are_sentences(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("FETCHSGD_DATA", "/nowhere")
    with pytest.raises(ValueError, match="there is no file /nowhere/shakespeare/.* task.folder"):
        shakespeare()
    with pytest.raises(ValueError, match="task.sequences_per_client must be 0 or at least 2"):
        shakespeare(folder=folder, sequences_per_client=1)


# --- network


def test_the_network_is_as_large_as_it_says():
    assert f"{FlatModel(CharacterModel(74)).dim:,}" in CharacterModel.__doc__


def test_no_character_sees_what_comes_after_it(generator):
    model = CharacterModel(9, width=16, layers=2)
    letters = torch.randint(9, (2, LENGTH), generator=generator)
    changed = letters.clone()
    changed[:, 50:] = (changed[:, 50:] + 1) % 9
    before, after = model(letters), model(changed)
    assert torch.allclose(before[:, :50], after[:, :50], atol=1e-6)
    assert not torch.isclose(before[:, 50], after[:, 50]).all()


def test_clients_gradients_take_one_pass(generator):
    flat = FlatModel(CharacterModel(9, width=16, layers=2))
    letters = torch.randint(9, (3, 2, LENGTH + 1), generator=generator)
    present = torch.tensor([[True, True], [True, False], [True, True]])
    cohort = Cohort(letters[..., :-1].int(), letters[..., 1:], present, torch.full((3,), 1 / 3))
    gradients = ClientGradients(flat, mean_loss, torch.float32)
    found, losses = gradients(flat.weights(), cohort)
    assert gradients.one_pass_serves
    expected, other = gradients.by_vmap(flat.weights(), cohort)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(losses, other, atol=1e-5)


def test_perplexity_without_a_clue_is_the_number_of_characters(folder):
    settings = {"name": "shakespeare", "folder": folder}
    run = Run(resolve({"task": settings, "train": {"clients_per_round": 2, "device": "cpu"}}))
    characters = len(set(LINE) | {"\n", "A", "y", "."})
    perplexity, loss = run.evaluate(torch.zeros(run.setup.model.dim))
    assert perplexity == pytest.approx(characters, rel=1e-4)
    assert loss == pytest.approx(math.log(characters), rel=1e-4)
    assert np.isfinite(run.evaluate(run.setup.origin)).all()
