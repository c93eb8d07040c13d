"""PersonaChat as in section 5.3 and appendix A.3: a language model learns to chat in character.

Clients are the personalities that people were given to act out. The data are the one JSON file of
Wolf et al. (2019), whose recipe the paper follows: the loss is that of the reply's tokens, and of
telling the reply from others. Turning its texts into tokens is what takes time, so the tokens are
kept beside it, for each tokenizer; they serve as long as the file is the same, byte by byte.

Memory: an example takes 8 bytes for each candidate and token of the longest example, which are 200
with GPT-2's tokens. The published file has 131,438 replies to train with: 1.7 GB.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks.base import ClientData, Task, perplexity
from fetchsgd.tasks.dialogues import (
    Dialogue,
    Example,
    Layout,
    Tokens,
    Vocabulary,
    dialogue_examples,
    distinct_texts,
    group_by_personality,
    pack,
    parse_dialogues,
)
from fetchsgd.tasks.download import data_folder
from fetchsgd.tasks.language_models import (
    Encoder,
    Source,
    find_model,
    load_dialogue_model,
    load_encoder,
)
from fetchsgd.tasks.lora import ALL_LINEAR, find_lora

FILE = "personachat_self_original.json"
SOURCE = f"https://s3.amazonaws.com/datasets.huggingface.co/personachat/{FILE}"
GROUPS = ("sentences", "listing")

PRESET: dict[str, dict[str, Any]] = {
    "train": {
        "epochs": 1.0,
        "baseline_epochs": 1.0,
        "clients_per_round": 4,  # some 64 examples
        "dtype": "auto",
        "eval_every": 0.25,
        # Hardly two cohorts are of the same shape, and the model keeps a GPU busy without.
        "cuda_graphs": False,
    },
    "schedule": {"kind": "linear", "peak": 0.16},
    "download": {"step": 0.03},
    "methods": {
        "fetchsgd": {"cols": 1_240_000},
        "fetchsgd-paper": {"k": 50_000, "cols": 1_240_000},
        "local_topk": {"k": 50_000},
        "true_topk": {"k": 200_000},
        "messages": {"upload": {"density": 0.02}},
        "fedavg": {"local": {"epochs": 2}, "train": {"epochs": 0.2}},
    },
}


def personachat(
    seed: int = 0,
    folder: str = "",
    model: str = "gpt2",
    length: int = 256,
    candidates: int = 4,
    permutations: int = 2,
    exchanges: int = 2,
    lm_coefficient: float = 2.0,
    personality: str = "sentences",
    test_dialogues: int = 0,
    lora_rank: int = 0,
    lora_alpha: float = 0.0,
    lora_targets: str = ALL_LINEAR,
) -> Task:
    """PersonaChat: a language model learns to chat in character (section 5.3).

    `folder` holds the JSON file; without it, personachat in FETCHSGD_DATA or ~/.cache/fetchsgd.

    model: a name on the hub, a folder or a .gguf file. length: the most tokens of a sequence.
    permutations: how often each dialogue is seen, with its personality in another order each time.
    exchanges: how much of the dialogue is remembered. test_dialogues: 0 is all of them.
    personality: two with the same "sentences" are one client; or with the same "listing" of them,
        in the same order, which gives the paper's number of clients.
    lora_rank: above 0 only adapters of this rank are trained (lora.py). lora_alpha: 0 is twice the
        rank. lora_targets: the layers that get one, as "q_proj,v_proj".
    """
    check_options(length, candidates, permutations, exchanges, personality, test_dialogues)
    lora = find_lora(lora_rank, lora_alpha, lora_targets)
    path = find_file(folder)
    source = find_model(model)
    encoder = encoder_of(source)
    splits, tokens = read(path, path.stat().st_mtime_ns, source)
    layout = Layout(encoder.specials, length, exchanges)
    clients = group_by_personality(splits["train"], ordered=personality == "listing")
    train, sizes = training_examples(clients, permutations, candidates, tokens, layout, seed)
    test = [
        example
        for dialogue in splits["valid"][: test_dialogues or None]
        for example in dialogue_examples(
            dialogue, range(len(dialogue.personality)), 1, tokens, layout
        )
    ]
    test.sort(key=lambda example: example.length)  # so that a batch has little padding
    window = max(example.counted for example in (*train, *test))
    inputs, counted = map(torch.from_numpy, pack(train, encoder.specials))
    test_inputs, test_counted = map(torch.from_numpy, pack(test, encoder.specials))
    longest = max(inputs.shape[-1], test_inputs.shape[-1])
    return Task(
        name="personachat",
        train=ClientData(
            inputs, counted, np.concatenate([[0], np.cumsum(sizes)]), lengths_of(train)
        ),
        test_inputs=test_inputs,
        test_targets=test_counted,
        model=partial(load_dialogue_model, source, encoder, window, longest, lora),
        loss=partial(dialogue_loss, window=window, lm_coefficient=lm_coefficient),
        quality=partial(reply_losses, window=window),
        metric="perplexity",
        higher_is_better=False,
        summary=perplexity,
        eval_batch=64,
        test_lengths=lengths_of(test),
        preset=PRESET,
    )


def check_options(
    length: int,
    candidates: int,
    permutations: int,
    exchanges: int,
    personality: str,
    test_dialogues: int,
) -> None:
    for name, value, least in (
        ("length", length, 8),
        ("candidates", candidates, 1),
        ("permutations", permutations, 1),
        ("exchanges", exchanges, 0),
        ("test_dialogues", test_dialogues, 0),
    ):
        if value < least:
            raise ValueError(f"task.{name} must be at least {least}, got {value}")
    if personality not in GROUPS:
        raise ValueError(
            f"task.personality must be one of {', '.join(GROUPS)}, got {personality!r}"
        )


# --- the loss


def reply_losses(
    outputs: Float[Tensor, "n both"], counted: Int64[Tensor, " n"], window: int
) -> Float[Tensor, "n 2"]:
    """The loss of each reply, summed over its tokens, and how many these are."""
    place = torch.arange(window, device=outputs.device)
    inside = place >= window - counted[:, None]
    total = outputs[:, :window].masked_fill(~inside, 0).sum(dim=1)
    return torch.stack([total, counted.to(total.dtype)], dim=1)


def dialogue_loss(
    outputs: Float[Tensor, "n both"],
    counted: Int64[Tensor, " n"],
    window: int,
    lm_coefficient: float,
) -> Float[Tensor, " n"]:
    """The mean over the reply's tokens, and what choosing among the candidates adds."""
    total, count = reply_losses(outputs, counted, window).unbind(dim=1)
    choice = -log_softmax(outputs[:, window:], dim=1)[:, -1]  # the last is right
    return lm_coefficient * total / count + choice


# --- the data


def training_examples(
    clients: list[list[Dialogue]],
    permutations: int,
    candidates: int,
    tokens: Vocabulary,
    layout: Layout,
    seed: int,
) -> tuple[list[Example], list[int]]:
    """The examples of each client after those of the last, and how many it has.

    A dialogue comes with its personality as it is listed, and again in an order drawn at random.
    """
    generator = numpy_generator(seed, "split", 1)
    examples: list[Example] = []
    sizes = []
    for dialogues in clients:
        before = len(examples)
        for dialogue in dialogues:
            sentences = np.arange(len(dialogue.personality))
            for again in range(permutations):
                order = generator.permutation(sentences) if again else sentences
                examples += dialogue_examples(dialogue, order.tolist(), candidates, tokens, layout)
        sizes.append(len(examples) - before)
    return examples, sizes


def lengths_of(examples: list[Example]) -> NDArray[np.int64]:
    return np.array([example.length for example in examples], np.int64)


def find_file(folder: str) -> Path:
    base = Path(folder).expanduser().absolute() if folder else data_folder() / "personachat"
    path = base / FILE
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}; task.folder must name its folder, or the environment "
            f"variable FETCHSGD_DATA the one above that; the file is available from {SOURCE}"
        )
    return path


@lru_cache(maxsize=1)  # a sweep makes the task once for each of its runs
def encoder_of(source: Source) -> Encoder:
    return load_encoder(source)


@lru_cache(maxsize=1)
def read(
    path: Path,
    changed: int,  # noqa: ARG001 (a file that has changed is read again)
    source: Source,
) -> tuple[dict[str, list[Dialogue]], Vocabulary]:
    """The dialogues, and every text's tokens."""
    content = path.read_bytes()
    splits = parse_dialogues(content, path)
    texts = distinct_texts(splits)
    encoder = encoder_of(source)
    if encoder.digest is None:
        return splits, dict(zip(texts, encoder.encode(texts), strict=True))
    key = hashlib.sha256(hashlib.sha256(content).digest() + encoder.digest.encode()).hexdigest()
    cache = path.with_name(f"{path.stem}.{key[:16]}.tokens.npz")
    tokens = load_tokens(cache, len(texts))
    if tokens is None:
        tokens = encoder.encode(texts)
        save_tokens(cache, tokens)
    return splits, dict(zip(texts, tokens, strict=True))


def load_tokens(cache: Path, texts: int) -> list[Tokens] | None:
    """None if there is none, or if it is not whole: then it is made again."""
    try:
        with np.load(cache, allow_pickle=False) as arrays:
            tokens, ends = arrays["tokens"], arrays["ends"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    whole = len(ends) == texts and tokens.dtype == np.int32 and ends[-1] == len(tokens)
    return np.split(tokens, ends[:-1]) if whole else None


def save_tokens(cache: Path, tokens: list[Tokens]) -> None:
    """Written beside its place and moved there, so that a file that is there is a whole one."""
    ends = np.cumsum([len(each) for each in tokens])
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            np.savez(file, tokens=np.concatenate(tokens), ends=ends)
        temporary.replace(cache)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        warnings.warn(
            f"cannot keep tokens in {cache}, so they are made again each time: {error.strerror}",
            stacklevel=2,
        )
