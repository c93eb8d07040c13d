"""Pretrained language models with a second head, for dialogues (section 5.3 and appendix A.3).

The paper takes GPT-2 small. Here it is any causal language model that transformers can load:
by its name from the hub, from a folder of safetensors with its tokenizer, or from a .gguf file.
transformers is imported when a model is asked for; the rest of the library does without.

Dropout is off: the model is handed over in eval mode, in which it also trains.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fetchsgd.errors import UserError
from fetchsgd.tasks.dialogues import Specials, Tokens
from fetchsgd.tasks.lora import Lora, add_adapters

SPECIALS = ("<bos>", "<eos>", "<speaker1>", "<speaker2>", "<pad>")
# Between two ways to compute the same; half floats on a GPU are not used for it.
ALLOWED_DIFFERENCE = 1e-2
INSTALL = "pip install fetchsgd[text]"


@dataclass(frozen=True)
class Source:
    """Where a model lies: what transformers is to load, and the .gguf file in it, if it is one."""

    name: str
    gguf: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        local = {"local_files_only": True} if Path(self.name).is_dir() else {}
        return local if self.gguf is None else {**local, "gguf_file": self.gguf}


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with the special tokens; `added` are those that it did not have before."""

    tokenizer: Any
    specials: Specials
    added: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    @property
    def digest(self) -> str | None:
        """Tokenizers with equal digests give equal tokens; None where that cannot be known."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else hashlib.sha256(backend.to_str().encode()).hexdigest()

    def encode(self, texts: list[str]) -> list[Tokens]:
        found = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        special = set(astuple(self.specials))
        for text, tokens in zip(texts, found, strict=True):
            if not special.isdisjoint(tokens):
                raise UserError(f"a text holds one of {', '.join(SPECIALS)} as a word: {text!r}")
        return [np.array(tokens, np.int32) for tokens in found]


# --- loading


def find_model(model: str) -> Source:
    """What `task.model` names. A name that is no path is one of the hub's."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"task.model names the file {path}, which does not exist")
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise UserError(f"a .gguf file needs the package {package}: {INSTALL}")
        return Source(str(path.parent), path.name)
    if model and path.is_dir():
        for what, pattern in (("configuration", "config.json"), ("weights", "*.safetensors")):
            if not any(path.glob(pattern)):
                raise UserError(
                    f"the folder {path} has no {what}; task.model must name a folder with "
                    "config.json, *.safetensors and the files of a tokenizer"
                )
        return Source(str(path))
    if not model or path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise UserError(
            "task.model must be a folder, a .gguf file or a name on the hub such as 'gpt2', "
            f"got {model!r}"
        )
    return Source(model)


def load_encoder(source: Source) -> Encoder:
    tokenizer = _load("AutoTokenizer", source)
    known = len(tokenizer)
    try:
        tokenizer.add_tokens(list(SPECIALS), special_tokens=True)
        ids = [tokenizer.convert_tokens_to_ids(token) for token in SPECIALS]
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise UserError(f"{_takes_none(source)}: {error}") from error
    if len(set(ids)) < len(ids) or not all(isinstance(i, int) for i in ids):
        raise UserError(f"{_takes_none(source)}: they became {ids}")
    return Encoder(tokenizer, Specials(*ids), tuple(i for i in ids if i >= known))


def _takes_none(source: Source) -> str:
    names = ", ".join(SPECIALS)
    return f"the tokenizer of {source.name} cannot take the special tokens {names}"


def load_language_model(source: Source, encoder: Encoder) -> nn.Module:
    """The model with room for the special tokens, whose weights come from torch's generator."""
    # torch can run many clients' attention at once by its fast kernels on a GPU, not on a CPU.
    attention = "sdpa" if torch.cuda.is_available() else "eager"
    model = _load("AutoModelForCausalLM", source, attn_implementation=attention)
    nn.Module.float(model)  # transformers' own refuses what came from a .gguf file
    if encoder.size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(encoder.size, mean_resizing=False)
    words, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    rows = torch.tensor(encoder.added, dtype=torch.int64)
    std = getattr(model.config, "initializer_range", 0.02)
    with torch.no_grad():
        for weight in (words,) if outputs is words else (words, outputs):  # as a rule they are tied
            weight[rows] = std * torch.randn(len(rows), weight.shape[1])
    loaded: nn.Module = model
    return loaded


def _load(kind: str, source: Source, **options: Any) -> Any:
    """What transformers loads, with a sentence for whatever goes wrong."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UserError(f"language models need the package {error.name}: {INSTALL}") from error
    transformers.utils.logging.disable_progress_bar()
    try:
        return getattr(transformers, kind).from_pretrained(source.name, **source.options, **options)
    except Exception as error:  # there are as many kinds as there are libraries below it
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"transformers cannot load {source.gguf or source.name!r}: {reason}; task.model must "
            "be a folder, a .gguf file or, with internet access, a name on the hub such as 'gpt2'"
        ) from error


# --- the model


class DialogueModel(nn.Module):
    """A language model, and a linear layer that tells the right reply from others.

    window: how many tokens at the end of a sequence are predicted; the longest reply.
    """

    language_model: Any

    def __init__(self, language_model: nn.Module, pad: int, window: int) -> None:
        super().__init__()
        self.language_model = language_model
        self.pad, self.window = pad, window
        width = self.language_model.get_input_embeddings().embedding_dim
        self.choice = nn.Linear(width, 1)
        self.eval()

    def forward(
        self, inputs: Int32[Tensor, "n candidates 2 length"]
    ) -> Float[Tensor, "n window+candidates"]:
        """The loss of each token in the window of the last candidate, and every one's score.

        Losses and not logits, which would take a number for each word of the vocabulary.
        """
        n, candidates = inputs.shape[:2]
        tokens, types = inputs.flatten(0, 1).unbind(dim=1)
        embed = self.language_model.get_input_embeddings()
        # GPT-2 adds the embedding of a token's type by itself; done here, it serves every model.
        states = self.states(embed(tokens) + embed(types))
        last = (tokens != self.pad).sum(dim=1) - 1
        scores = self.choice(take(states, last[:, None])).view(n, candidates)
        right = slice(candidates - 1, None, candidates)
        losses = self.token_losses(states[right], tokens[right], last[right])
        return torch.cat([losses, scores], dim=1)

    def states(
        self, embedded: Float[Tensor, "sequences length width"]
    ) -> Float[Tensor, "sequences length width"]:
        """What the model makes of each token and of those before it.

        Padding is on the right, where no token of a sequence looks: the causal mask hides it.
        """
        length = embedded.shape[1]
        lowest = torch.finfo(torch.float32).min
        # Given whole: where transformers makes the mask, it looks at the data, and vmap cannot.
        mask = torch.full((length, length), lowest, device=embedded.device).triu(1)
        found: Tensor = self.language_model.base_model(
            inputs_embeds=embedded,
            attention_mask=mask.view(1, 1, length, length),
            use_cache=False,
        ).last_hidden_state
        return found

    def token_losses(
        self,
        states: Float[Tensor, "n length width"],
        tokens: Int[Tensor, "n length"],
        last: Int[Tensor, " n"],
    ) -> Float[Tensor, "n window"]:
        """The loss of the last tokens of each sequence, each predicted from those before it."""
        back = torch.arange(1 - self.window, 1, device=last.device)
        at = (last[:, None] + back).clamp(min=1)  # more tokens than there are do not count
        logits = self.language_model.get_output_embeddings()(take(states, at - 1))
        words = tokens.gather(1, at).long()
        losses = cross_entropy(logits.flatten(0, 1).float(), words.flatten(), reduction="none")
        return losses.view(words.shape)


def take(
    states: Float[Tensor, "n length width"], at: Int[Tensor, "n places"]
) -> Float[Tensor, "n places width"]:
    return states.gather(1, at[:, :, None].expand(-1, -1, states.shape[2]))


def load_dialogue_model(
    source: Source, encoder: Encoder, window: int, length: int, lora: Lora | None = None
) -> DialogueModel:
    """A model for sequences of the given length, of which all weights are trained, or adapters."""
    language_model = load_language_model(source, encoder)
    longest = getattr(language_model.config, "max_position_embeddings", length)
    if length > longest:
        raise UserError(
            f"task.length must be at most {longest} for {source.name}, which knows no more "
            f"positions; the longest example has {length} tokens"
        )
    model = DialogueModel(language_model, encoder.specials.pad, window)
    check_heads(model, source, length)
    if lora is not None:
        add_adapters(model.language_model, lora, encoder.added)
        model.eval()
    return model


@torch.no_grad()
def check_heads(model: DialogueModel, source: Source, length: int) -> None:
    """Refuse models that do more than ours, such as scaling logits or limiting attention."""
    inner = model.language_model
    embed = inner.get_input_embeddings()
    tokens = torch.arange(length)[None] % embed.num_embeddings
    expected = inner(input_ids=tokens, use_cache=False).logits
    found = inner.get_output_embeddings()(model.states(embed(tokens)))
    if (found - expected).norm() > ALLOWED_DIFFERENCE * expected.norm():
        raise UserError(
            f"{source.name} does more with its states than a linear layer on top of causal "
            "attention; task.model must be a plain causal language model, as GPT-2 and Llama are"
        )
