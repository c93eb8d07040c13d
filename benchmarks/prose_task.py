"""A small language model that learns this project's own pages: a stand-in for PersonaChat.

PersonaChat and GPT-2 are not always at hand; what matters to a quantiser is. Each client has a few
stretches of one page, so that of the embedding only the rows of its own words have a gradient, and
words are as uneven as they are in any text. As a task: `prose_task:prose`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fetchsgd.tasks import ClientData, Task

ROOT = Path(__file__).parents[1]
LENGTH, STRETCHES, WORDS, WIDTH, LAYERS = 48, 4, 4096, 192, 4
PRESET = {
    "train": {"epochs": 4.0, "clients_per_round": 8},
    "schedule": {"kind": "constant", "peak": 0.02},
}


class Prose(nn.Module):
    """A causal transformer whose output shares the embedding."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS, num_attention_heads=6, tie_word_embeddings=True,
            attn_implementation="eager",
        )  # fmt: skip
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


def prose(seed: int = 0) -> Task:  # noqa: ARG001
    """Next words of the pages and programs of this repository."""
    texts = [p.read_text() for kind in ("*.md", "*.py") for p in sorted(ROOT.rglob(kind))
             if ".venv" not in p.parts]  # fmt: skip
    pages = [re.findall(r"\w+|[^\w\s]", text) for text in texts]
    common = Counter(word for page in pages for word in page).most_common(WORDS - 1)
    number = {word: i + 1 for i, (word, _) in enumerate(common)}
    stretches, owners = [], []
    client = 0
    for page in pages:
        tokens = np.array([number.get(word, 0) for word in page])
        whole = len(tokens) // (LENGTH + 1)
        for first in range(0, whole - STRETCHES + 1, STRETCHES):
            part = tokens[first * (LENGTH + 1) : (first + STRETCHES) * (LENGTH + 1)]
            stretches.append(part.reshape(STRETCHES, LENGTH + 1))
            owners += [client] * STRETCHES
            client += 1
    data = torch.from_numpy(np.concatenate(stretches))
    inputs, targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    return Task(
        name="prose", train=ClientData.from_groups(inputs, targets, np.array(owners)),
        test_inputs=inputs[:32], test_targets=targets[:32],
        model=Prose, loss=_loss, quality=_quality, preset=PRESET,
    )  # fmt: skip


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1)


def _quality(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(dim=-1) == targets).float().mean(dim=1)
