"""Adapters of low rank: they alone are trained, by whichever way gradients are computed."""

import importlib.util
import json
import sys

import pytest
import torch
from tasks.test_language_models import LENGTH, WINDOW, loss, some_inputs, write_model
from tasks.test_personachat import DATA, FILE, forget

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.clients.trainer import Trainer
from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks.language_models import load_dialogue_model, load_encoder
from fetchsgd.tasks.lora import Lora
from fetchsgd.vector import FlatModel

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None,
    reason="peft is not installed: pip install fetchsgd[llm]",
)
EVERY_LAYER = Lora(rank=2)


def load(source, lora, seed=0):
    encoder = load_encoder(source)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = load_dialogue_model(source, encoder, WINDOW, LENGTH, lora)
    return model, encoder


@needs_peft
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_adapters_and_new_words_are_trained_and_nothing_else(tmp_path, kind, tied):
    source = write_model(tmp_path, kind, tie_word_embeddings=tied)
    plain, _ = load(source, None)
    model, encoder = load(source, EVERY_LAYER)
    inputs, _ = some_inputs(encoder.specials)
    assert torch.allclose(plain(inputs), model(inputs), atol=1e-6)  # B starts with zeros
    names = FlatModel(model).names
    words = [name for name in names if "trainable_tokens_delta" in name]
    assert len(words) == (1 if tied else 2)
    rest = {name for name in names if name not in words and "lora_" not in name}
    assert rest == {"choice.weight", "choice.bias"}
    assert FlatModel(model).dim < FlatModel(plain).dim / 2
    few = FlatModel(load(source, Lora(1, targets="c_attn" if kind == "gpt2" else "q_proj"))[0])
    assert len(few.names) == len(words) + 2 + 2 * 2  # two layers with one each
    again = FlatModel(load(source, EVERY_LAYER)[0]).weights()
    assert torch.equal(again, FlatModel(model).weights())  # by the seed


@needs_peft
def test_each_clients_gradient_is_what_autograd_gives(tmp_path):
    """Side by side and one by one, with adapters away from zero."""
    model, encoder = load(write_model(tmp_path, "llama"), EVERY_LAYER)
    flat = FlatModel(model)
    weights = flat.weights() + 0.1 * torch.randn(flat.dim, generator=torch.manual_seed(3))
    inputs, counted = some_inputs(encoder.specials, n=4)
    cohort = Cohort(
        inputs.view(2, 2, *inputs.shape[1:]),
        counted.view(2, 2),
        torch.tensor([[True, True], [True, False]]),
        torch.full((2,), 1 / 2),
    )
    side_by_side = ClientGradients(flat, loss, torch.float32)
    assert side_by_side.can_take(weights, cohort)
    vectors, _ = side_by_side(weights, cohort)
    with torch.no_grad():
        for name, view in zip(flat.names, flat.views(weights), strict=True):
            model.get_parameter(name).copy_(view)
    trained = [model.get_parameter(name) for name in flat.names]
    for client, rows in enumerate([slice(0, 2), slice(2, 3)]):
        mean = loss(model(inputs[rows]), counted[rows]).mean()
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(mean, trained)])
        assert expected.norm() > 0.1
        assert torch.allclose(vectors[client], expected, atol=1e-5)
        pieces, _ = Trainer(flat, loss).mean_gradient(weights, cohort.alone(client), 0)
        assert torch.allclose(torch.cat([p.flatten() for p in pieces]), expected, atol=1e-5)


@needs_peft
def test_a_run_sends_only_adapters(tmp_path):
    forget()
    write_model(tmp_path / "model", "llama")
    (tmp_path / FILE).write_text(json.dumps(DATA))
    config = resolve({
        "task": {
            "name": "personachat", "folder": str(tmp_path), "model": str(tmp_path / "model"),
            "candidates": 2, "lora_rank": 2,
        },
        "method": {"name": "true_topk", "k": 200},
        "upload": {"quantiser": "shared_step", "density": 0.2},
        "download": {"grid": "steps"},
        "train": {
            "clients_per_round": 2, "epochs": 8.0, "device": "cpu", "dtype": "bfloat16_weights",
        },
        "schedule": {"peak": 0.3},
    })  # fmt: skip
    run = Run(config)
    before, _ = run.evaluate(run.setup.origin)
    frozen = {name: part.clone() for name, part in run.setup.model.constants().items()}
    result = run.execute(tmp_path / "run")
    assert result["value"] < before
    assert result["dim"] == run.setup.model.dim < 2500
    for name, part in run.setup.model.constants().items():
        assert torch.equal(part, frozen[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": -1}, "task.lora_rank must be at least 1, got -1"),
        ({"lora_rank": 2, "lora_alpha": -1.0}, "task.lora_alpha must be at least 0, got -1"),
        ({"lora_rank": 2, "lora_targets": "q,"}, "names of layers with commas between"),
        ({"lora_alpha": 2.0}, "task.lora_alpha is 2.0, but task.lora_rank is 0"),
    ],
)
def test_an_option_out_of_range_is_a_sentence(tmp_path, options, message):
    (tmp_path / FILE).write_text(json.dumps(DATA))
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "personachat", "folder": str(tmp_path), **options}})


@needs_peft
def test_layers_that_a_model_does_not_have_are_a_sentence(tmp_path):
    source = write_model(tmp_path, "llama")
    with pytest.raises(UserError, match="task.lora_targets = 'c_attn': .*'all-linear' takes every"):
        load(source, Lora(2, targets="c_attn"))


def test_without_peft_there_is_a_sentence(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    source = write_model(tmp_path, "llama")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"needs the package peft: pip install fetchsgd\[llm\]"):
        load(source, EVERY_LAYER)
