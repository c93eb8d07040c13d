"""Language models for dialogues, on tiny ones with random weights; transformers where it is."""

import importlib
import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.clients.trainer import Trainer
from fetchsgd.errors import UserError
from fetchsgd.tasks import language_models
from fetchsgd.tasks.language_models import (
    Encoder,
    Source,
    find_model,
    load_dialogue_model,
    load_encoder,
    load_language_model,
)
from fetchsgd.tasks.personachat import dialogue_loss
from fetchsgd.vector import FlatModel

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: pip install fetchsgd[text]",
)
WORDS = ["<unk>", *(f"w{i}" for i in range(19))]
WINDOW, LENGTH = 4, 12
CONFIGS = {
    "gpt2": {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "llama": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    },
}  # fmt: skip
CONFIGS["mistral"] = CONFIGS["llama"]


def write_model(folder, kind, **options):
    """A model and its tokenizer as a folder, as transformers writes it."""
    import tokenizers
    import transformers

    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    options = {"vocab_size": len(WORDS), "tie_word_embeddings": True} | CONFIGS[kind] | options
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(kind, **options)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return Source(str(folder))


def load(source, seed=0, window=WINDOW, length=LENGTH):
    encoder = load_encoder(source)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return load_dialogue_model(source, encoder, window, length), encoder.specials


@pytest.fixture(params=["gpt2", "llama"])
def loaded(request, tmp_path):
    return load(write_model(tmp_path, request.param))


def some_inputs(specials, n=3, candidates=2, seed=0):
    """Random words from speaker 1 and 2, sequences of different lengths, and counted tokens."""
    generator = np.random.default_rng(seed)
    inputs = np.full((n, candidates, 2, LENGTH), specials.pad, np.int32)
    for sequence in inputs.reshape(-1, 2, LENGTH):
        length = generator.integers(WINDOW + 2, LENGTH)
        sequence[0, :length] = generator.integers(0, len(WORDS), length)
        sequence[1, :length] = generator.choice([specials.speaker1, specials.speaker2], length)
    return torch.from_numpy(inputs), torch.from_numpy(generator.integers(1, WINDOW + 1, n))


def loss(outputs, counted):
    return dialogue_loss(outputs, counted, window=WINDOW, lm_coefficient=2.0)


# --- what it computes


@needs_transformers
def test_losses_are_those_of_the_models_own_logits(loaded):
    model, specials = loaded
    inputs, _ = some_inputs(specials)
    outputs = model(inputs)
    assert outputs.shape == (3, WINDOW + 2)
    embed = model.language_model.get_input_embeddings()
    for example, found in zip(inputs, outputs, strict=True):
        for i, (tokens, types) in enumerate(example):
            length = int((tokens != specials.pad).sum())
            words = (embed(tokens) + embed(types))[None, :length]  # without the padding
            made = model.language_model(inputs_embeds=words, output_hidden_states=True)
            score = model.choice(made.hidden_states[-1][0, -1])
            assert torch.allclose(score, found[WINDOW + i], atol=1e-5)
        chances = made.logits[0].log_softmax(dim=-1)
        for back in range(1, WINDOW + 1):
            at = length - back
            expected = -chances[at - 1, tokens[at]]
            assert torch.allclose(expected, found[WINDOW - back], atol=1e-5)


@needs_transformers
def test_more_padding_changes_nothing(loaded):
    model, specials = loaded
    inputs, _ = some_inputs(specials)
    wider = nn.functional.pad(inputs, (0, 7), value=specials.pad)
    assert torch.allclose(model(inputs), model(wider), atol=1e-5)


@needs_transformers
def test_types_are_gpt2s_own(tmp_path):
    model, specials = load(write_model(tmp_path, "gpt2"))
    inputs, _ = some_inputs(specials)
    tokens, types = inputs.flatten(0, 1).unbind(dim=1)
    embed = model.language_model.get_input_embeddings()
    expected = model.language_model.transformer(input_ids=tokens, token_type_ids=types)
    found = model.states(embed(tokens) + embed(types))
    assert torch.allclose(expected.last_hidden_state, found, atol=1e-5)


@needs_transformers
def test_dropout_is_off(loaded):
    model, specials = loaded
    inputs, _ = some_inputs(specials)
    assert torch.equal(model(inputs), model(inputs))


# --- as one flat vector


@needs_transformers
def test_a_tied_weight_is_there_once_and_its_gradient_has_both_uses(loaded):
    model, specials = loaded
    inner = model.language_model
    words, outputs = inner.get_input_embeddings(), inner.get_output_embeddings()
    assert words.weight is outputs.weight
    flat = FlatModel(model)
    assert sum(shape == words.weight.shape for shape in flat.shapes) == 1
    inputs, counted = some_inputs(specials)
    parameters = [view.requires_grad_() for view in flat.views(flat.weights())]
    found = torch.autograd.grad(loss(flat(parameters, inputs), counted).sum(), parameters)
    place = flat.shapes.index(words.weight.shape)
    # The same with the two apart.
    outputs.weight = nn.Parameter(words.weight.detach().clone())
    apart = torch.autograd.grad(loss(model(inputs), counted).sum(), [words.weight, outputs.weight])
    assert min(part.norm() for part in apart) > 0.1
    assert torch.allclose(found[place], apart[0] + apart[1], atol=1e-5)


@needs_transformers
def test_clients_side_by_side_are_clients_one_by_one(loaded):
    model, specials = loaded
    flat = FlatModel(model)
    weights = flat.weights()
    inputs, counted = some_inputs(specials, n=6)
    present = torch.tensor([[True, True], [True, False], [True, True]])
    cohort = Cohort(
        inputs.view(3, 2, *inputs.shape[1:]), counted.view(3, 2), present, torch.full((3,), 1 / 3)
    )
    vectors, losses = ClientGradients(flat, loss, torch.float32)(weights, cohort)
    again, _ = ClientGradients(flat, loss, torch.float32)(weights.expand(3, -1), cohort)
    assert torch.allclose(vectors, again, atol=1e-5)
    for i in range(3):
        pieces, mean = Trainer(flat, loss).mean_gradient(weights, cohort.alone(i), 0)
        expected = torch.cat([piece.flatten() for piece in pieces])
        assert torch.allclose(vectors[i], expected, atol=1e-5)
        assert torch.allclose(losses[i], mean)


# --- loading


@needs_transformers
def test_weights_of_new_tokens_follow_from_the_seed(tmp_path):
    source = write_model(tmp_path, "llama", tie_word_embeddings=False)
    encoder = load_encoder(source)
    assert encoder.added == tuple(range(len(WORDS), len(WORDS) + 5))
    rows = []
    for seed in (0, 0, 1):
        model, _ = load(source, seed)
        inner = model.language_model
        rows.append(inner.get_input_embeddings().weight)
        assert len(rows[-1]) == len(WORDS) + 5
        assert 0.01 < inner.get_output_embeddings().weight[len(WORDS) :].std() < 0.03
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0][: len(WORDS)], rows[2][: len(WORDS)])
    assert not torch.isclose(rows[0][len(WORDS) :], rows[2][len(WORDS) :]).any()


@needs_transformers
def test_tokens_that_a_model_knows_are_left_alone(tmp_path):
    source = write_model(tmp_path / "before", "gpt2")
    model, specials = load(source)
    model.language_model.save_pretrained(tmp_path / "after")
    load_encoder(source).tokenizer.save_pretrained(tmp_path / "after")
    again, same = load(Source(str(tmp_path / "after")), seed=5)
    assert specials == same
    inner, other = model.language_model, again.language_model
    assert torch.equal(inner.get_input_embeddings().weight, other.get_input_embeddings().weight)


@needs_transformers
def test_half_floats_become_floats(tmp_path):
    source = write_model(tmp_path, "gpt2")
    model = load_language_model(source, load_encoder(source))
    model.bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in load(source)[0].parameters()} == {torch.float32}


@needs_transformers
def test_texts_become_tokens(tmp_path):
    encoder = load_encoder(write_model(tmp_path, "gpt2"))
    assert [t.tolist() for t in encoder.encode(["w1 w0 nonsense", ""])] == [[2, 1, 0], []]
    assert encoder.digest == load_encoder(Source(str(tmp_path))).digest
    with pytest.raises(UserError, match="<eos>.* as a word: 'w1 <eos>'"):
        encoder.encode(["w3", "w1 <eos>"])


# --- mistakes


@needs_transformers
def test_a_model_that_looks_back_less_far_is_refused(tmp_path):
    source = write_model(tmp_path, "mistral", sliding_window=4)
    assert load(source, length=4)
    with pytest.raises(UserError, match="must be a plain causal language model"):
        load(source)


@needs_transformers
def test_too_long_a_sequence_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="task.length must be at most 32 for .* has 40 tokens"):
        load(write_model(tmp_path, "gpt2"), length=40)


@needs_transformers
def test_what_transformers_refuses_is_a_sentence(tmp_path):
    source = write_model(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    assert find_model(str(tmp_path)) == source
    with pytest.raises(UserError, match="transformers cannot load"):
        load(source)


def test_without_transformers_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"need the package transformers: pip install fetchsgd\[te"):
        load_encoder(Source("gpt2"))


def test_a_model_is_a_name_a_folder_or_a_file(tmp_path, monkeypatch):
    assert find_model("gpt2") == Source("gpt2")
    assert find_model("openai-community/gpt2") == Source("openai-community/gpt2")
    file = tmp_path / "small.gguf"
    with pytest.raises(UserError, match="small.gguf, which does not exist"):
        find_model(str(file))
    file.touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "gguf" or None)
    with pytest.raises(UserError, match="needs the package gguf: pip install"):
        find_model(str(file))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    source = find_model(str(file))
    assert source == Source(str(tmp_path), "small.gguf")
    assert source.options == {"local_files_only": True, "gguf_file": "small.gguf"}
    for nonsense in ("", "/nowhere/model", "./model", "~/model", "a/b/c"):
        with pytest.raises(UserError, match="task.model must be a folder, a .gguf file or a name"):
            find_model(nonsense)


def test_a_folder_without_weights_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="has no configuration; task.model must name a folder"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    with pytest.raises(UserError, match="has no weights; .* \\*.safetensors"):
        find_model(str(tmp_path))


class Stubborn:
    """A tokenizer for which every word is the unknown one, or that says no."""

    def __init__(self, says_no):
        self.says_no = says_no

    def __len__(self):
        return 3

    def add_tokens(self, _, special_tokens):  # noqa: ARG002
        if self.says_no:
            raise NotImplementedError("no new tokens here")
        return 0

    def convert_tokens_to_ids(self, _):
        return 0


@pytest.mark.parametrize(("says_no", "why"), [(True, "no new tokens here"), (False, "they became")])
def test_a_tokenizer_that_takes_no_special_tokens_is_a_sentence(monkeypatch, says_no, why):
    monkeypatch.setattr(language_models, "_load", lambda *_: Stubborn(says_no))
    with pytest.raises(UserError, match=f"gpt2 cannot take the special tokens <bos>, .*{why}"):
        load_encoder(Source("gpt2"))


def test_a_tokenizer_without_a_description_has_no_digest(monkeypatch):
    assert Encoder(Stubborn(False), None, ()).digest is None
