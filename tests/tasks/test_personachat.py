"""PersonaChat: the task with a made-up tokenizer, and runs of it with a tiny model."""

import importlib
import importlib.util
import json
import math

import numpy as np
import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks.base import perplexity, totals_and_counts
from fetchsgd.tasks.dialogues import Specials
from fetchsgd.tasks.language_models import Encoder
from fetchsgd.tasks.personachat import FILE, SOURCE, dialogue_loss, personachat, reply_losses

module = importlib.import_module("fetchsgd.tasks.personachat")  # its function has the same name
SPECIALS = Specials(bos=50, eos=51, speaker1=52, speaker2=53, pad=54)


class Backend:
    def to_str(self):
        return "words of made-up sentences"


class Tokenizer:
    """A word is a number. Counts how often it is asked."""

    backend_tokenizer = Backend()

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 55

    def __call__(self, texts, add_special_tokens):
        assert not add_special_tokens
        self.asked += 1
        return {"input_ids": [[int(word[1:]) for word in text.split()] for text in texts]}


@pytest.fixture
def tokenizer(monkeypatch):
    """In the place of transformers."""
    tokenizer = Tokenizer()
    encoder = Encoder(tokenizer, SPECIALS, tuple(range(50, 55)))
    monkeypatch.setattr(module, "load_encoder", lambda _: encoder)
    forget()
    yield tokenizer
    forget()


def forget():
    module.read.cache_clear()
    module.encoder_of.cache_clear()


def turns(*replies):
    history, made = [], []
    for reply in replies:
        history.append("w1 w2")
        made.append({"history": list(history), "candidates": ["w3", "w4 w5", reply]})
        history.append(reply)
    return made


def dialogue(personality, *replies):
    return {"personality": personality, "utterances": turns(*replies)}


DATA = {
    "train": [
        dialogue(["w6 w7", "w8"], "w9", "w10 w11"),
        dialogue(["w12", "w13", "w14"], "w3 w4 w5"),
        dialogue(["w8", "w6 w7"], "w15"),  # the first client's, in another order
    ],
    "valid": [dialogue(["w16"], "w17", "w18 w2"), dialogue(["w19"], "w1")],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FILE).write_text(json.dumps(DATA))
    return tmp_path


def make(folder, **options):
    return personachat(folder=str(folder), **{"candidates": 2, **options})


# --- data


def test_clients_are_personalities_and_their_data_are_doubled(folder, tokenizer):
    task = make(folder)
    assert task.train.sizes.tolist() == [2 * 3, 2 * 1]
    assert task.train.inputs.shape == (8, 2, 2, 16)
    assert task.train.inputs.dtype == torch.int32
    assert task.train.targets.tolist() == [2, 3, 2, 3, 2, 2, 4, 4]  # tokens of replies, and <eos>
    assert make(folder, personality="listing").train.sizes.tolist() == [4, 2, 2]
    assert make(folder, permutations=3).train.sizes.tolist() == [9, 3]


def test_permutations_move_sentences_and_nothing_else(folder, tokenizer):
    """With 40 permutations of three sentences some differ; a correct program always passes."""
    inputs = make(folder, permutations=40).train.inputs[-40:, -1, 0]
    assert {tuple(sorted(row.tolist())) for row in inputs} == {tuple(sorted(inputs[0].tolist()))}
    assert inputs[0, :4].tolist() == [SPECIALS.bos, 12, 13, 14]
    assert 1 < len({tuple(row.tolist()) for row in inputs}) <= 6
    assert torch.equal(inputs[:, 4:], inputs[:1, 4:].expand(40, -1))


def test_the_test_set_has_one_candidate_and_all_replies(folder, tokenizer):
    task = make(folder)
    assert task.test_inputs.shape[:3] == (3, 1, 2)
    assert task.test_targets.tolist() == [2, 2, 3]  # the shortest example first
    assert (np.diff(task.test_lengths) >= 0).all()
    assert make(folder, test_dialogues=1).test_targets.tolist() == [2, 3]
    assert task.metric == "perplexity"
    assert not task.higher_is_better


def test_tokens_are_kept_beside_the_data(folder, tokenizer):
    first = make(folder)
    (kept,) = folder.glob("*.tokens.npz")
    for expected, spoil in ((1, None), (2, b"PK nonsense"), (3, b"")):
        if spoil is not None:
            kept.write_bytes(spoil)
        forget()
        again = make(folder)
        assert tokenizer.asked == expected
        assert torch.equal(first.train.inputs, again.train.inputs)
    (folder / FILE).write_text(json.dumps(DATA | {"valid": DATA["train"]}))
    forget()
    make(folder)
    assert tokenizer.asked == 4
    assert len(list(folder.iterdir())) == 3  # nothing half-written is left behind


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(folder, tokenizer, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", refuse)
    with pytest.warns(UserWarning, match="cannot keep tokens .* No space left"):
        make(folder)
    assert [path.name for path in folder.iterdir()] == [FILE]


# --- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2}, "task.length must be at least 8, got 2"),
        ({"candidates": 0}, "task.candidates must be at least 1, got 0"),
        ({"candidates": 4}, "task.candidates is 4, but the file has a turn with 3"),
        ({"permutations": 0}, "task.permutations must be at least 1, got 0"),
        ({"personality": "mood"}, "task.personality must be one of sentences, listing, got 'mood'"),
        ({"model": "/nowhere"}, "task.model must be a folder"),
    ],
)
def test_an_option_out_of_range_is_a_sentence(folder, tokenizer, options, message):
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "personachat", "folder": str(folder), **options}})


def test_a_file_that_is_missing_or_malformed_is_a_sentence(tmp_path, tokenizer, monkeypatch):
    with pytest.raises(ValueError, match=f"there is no file {tmp_path / FILE}.*{SOURCE}"):
        make(tmp_path)
    (tmp_path / "personachat").mkdir()
    file = tmp_path / "personachat" / FILE
    file.write_text('{"train": [\n\n oh')
    monkeypatch.setenv("FETCHSGD_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is not JSON: Expecting value in line 3, column 2"):
        make("")


def test_a_reply_longer_than_allowed_is_a_sentence(folder, tokenizer):
    long = {"valid": [dialogue(["w1"], "w2 w3 w4 w5 w6 w7")]}
    (folder / FILE).write_text(json.dumps(DATA | long))
    with pytest.raises(ValueError, match="task.length must be at least 9 for the reply 'w2 w3"):
        make(folder, length=8)


# --- loss and metric


def test_the_loss_is_that_of_the_reply_and_of_the_choice():
    outputs = torch.tensor([[9.0, 1.0, 2.0, 3.0, 1.0, 0.0], [torch.inf, 9.0, 9.0, 4.0, 0.0, 0.0]])
    counted = torch.tensor([3, 1])
    found = dialogue_loss(outputs, counted, window=4, lm_coefficient=2.0)
    expected = [2 * 2 + math.log(1 + math.e), 2 * 4 + math.log(2)]
    assert found.tolist() == pytest.approx(expected)
    assert reply_losses(outputs, counted, window=4).tolist() == [[6, 3], [4, 1]]


def test_perplexity_is_of_tokens_and_not_of_replies():
    total, count = totals_and_counts(torch.tensor([[6.0, 3.0], [4.0, 1.0]]))
    assert perplexity(float(total / count)) == pytest.approx(math.exp(10 / 4))
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_the_metric_of_other_tasks_is_a_mean(dtype):
    total, count = totals_and_counts(torch.tensor([1, 0, 1, 1], dtype=dtype))
    assert float(total / count) == 0.75


# --- settings


def test_the_preset_is_the_papers(folder, tokenizer):
    def settings(method, **options):
        given = {"task": {"name": "personachat", "folder": str(folder), "candidates": 2}}
        few = {"clients_per_round": 2}  # of the two that there are
        return resolve(given | {"method": {"name": method, **options}, "train": few}).settings

    assert module.PRESET["train"]["clients_per_round"] == 4
    fetchsgd, fedavg = settings("fetchsgd", hash="fixed"), settings("fedavg")
    assert fetchsgd["schedule"]["kind"] == "linear"
    assert fetchsgd["schedule"]["peak"] == 0.16
    assert fetchsgd["method"]["momentum"] == 0.9
    assert (fetchsgd["method"]["k"], fetchsgd["method"]["cols"]) == (50_000, 1_240_000)
    assert fedavg["local"]["epochs"] == 2
    assert fedavg["train"]["epochs"] == 0.2
    assert fedavg["train"]["baseline_epochs"] == 1.0


# --- with a model


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: pip install fetchsgd[text]",
)
@pytest.mark.parametrize(
    ("method", "options"),
    [("fetchsgd", {"k": 50, "cols": 5000}), ("local_topk", {"k": 50}), ("fedavg", {})],
)
def test_a_run(folder, tmp_path, method, options):
    from tasks.test_language_models import write_model

    forget()
    write_model(tmp_path / "model", "gpt2")
    task = {"folder": str(folder), "model": str(tmp_path / "model"), "candidates": 2}
    config = resolve({
        "task": {"name": "personachat", **task},
        "method": {"name": method, **options},
        "train": {"clients_per_round": 2, "epochs": 2.0, "eval_every": 1.0, "device": "cpu"},
    })  # fmt: skip
    run = Run(config)
    before, _ = run.evaluate(run.setup.origin)
    outputs = run.setup.model(run.setup.model.views(run.setup.origin), config.task.test_inputs)
    losses = config.task.quality(outputs, config.task.test_targets).sum(dim=0)
    assert before == pytest.approx(float((losses[0] / losses[1]).exp()), rel=1e-4)
    assert 15 < before < 40  # of some 25 words, with random weights
    result = run.execute(tmp_path / "run")
    assert result["metric"] == "perplexity"
    assert result["higher_is_better"] is False
    assert result["value"] < before
