"""The model that a run leaves: by its own names, whole, and the one that was trained."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tinytask import tiny
from torch import nn

import fetchsgd as fs
from fetchsgd.runs.files import MODEL

TINY = "tinytask:tiny"


class Tied(nn.Module):
    """Two names for one matrix, a buffer, a cache, and a part that is frozen."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(5, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.frozen(self.second(torch.tanh(self.scale * self.first(x))))


def tied(seed=0):
    return replace(tiny(seed), model=Tied)


def test_the_file_is_a_state_dict_that_torch_takes(tmp_path):
    result = fs.simulate(tied, "uncompressed", folder=tmp_path)
    state = load_file(tmp_path / MODEL)
    fresh = Tied()
    assert set(state) == set(fresh.state_dict())
    fresh.load_state_dict(state, strict=True)
    inputs = tied().test_inputs
    assert torch.equal(fresh(inputs), result.model(inputs))
    assert torch.equal(fresh.first.weight, fresh.second.weight)
    right = (fresh(inputs).argmax(dim=1) == tied().test_targets).float().mean()
    assert right.item() == pytest.approx(result.value)
    assert not (tmp_path / f"{MODEL}.partial").exists()


def test_a_model_is_made_from_the_settings_of_its_run(tmp_path):
    result = fs.simulate({"name": TINY, "clients": 8}, "uncompressed", seed=4, folder=tmp_path)
    model = fs.load_model(tmp_path)
    assert torch.equal(model(tiny().test_inputs), result.model(tiny().test_inputs))
    assert fs.load_model(str(tmp_path), tiny().model)[0].weight.equal(model[0].weight)
    mine = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    assert fs.load_model(tmp_path, mine) is mine
    assert mine[2].bias.equal(model[2].bias)


def test_a_folder_of_an_older_version_has_a_checkpoint(tmp_path):
    result = fs.simulate(TINY, "uncompressed", folder=tmp_path)
    (tmp_path / MODEL).unlink()
    model = fs.load_model(tmp_path)
    assert torch.equal(model[0].weight, result.model[0].weight)
    with pytest.raises(fs.UserError, match="holds 75 weights, but the model has 8"):
        fs.load_model(tmp_path, nn.Linear(3, 2))


def test_what_cannot_be_loaded_gets_a_sentence(tmp_path):
    with pytest.raises(fs.UserError, match=r"holds no run: there is no config.toml"):
        fs.load_model(tmp_path / "nowhere")
    fs.simulate(tied(), "uncompressed", epochs=0.5, folder=tmp_path / "run")
    with pytest.raises(fs.UserError, match="give the model as well: load_model"):
        fs.load_model(tmp_path / "run")
    assert isinstance(fs.load_model(tmp_path / "run", Tied), Tied)
    with pytest.raises(fs.UserError, match="does not fit the model"):
        fs.load_model(tmp_path / "run", nn.Linear(3, 2))
    with pytest.raises(fs.DivergedError):
        fs.simulate(TINY, "uncompressed", peak=1e9, folder=tmp_path / "diverged")
    with pytest.raises(fs.UserError, match=r"has no model.safetensors"):
        fs.load_model(tmp_path / "diverged")
