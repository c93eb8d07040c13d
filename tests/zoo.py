"""Small models of every kind that people bring, with four clients' examples for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fourclients import cohort_like, cohort_of, images, last, words
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fetchsgd.clients.batches import Cohort
from fetchsgd.tasks import EachExample, cross_entropy, own_loss


@dataclass(frozen=True)
class Animal:
    """batched: whether clients can be computed at once."""

    make: Callable[[], nn.Module]
    cohort: Callable[[], Cohort]
    loss: Callable[[Any, Any], Tensor] = cross_entropy
    batched: bool = True


class Tied(nn.Module):
    """Word vectors that also score words, of which the first three count."""

    def __init__(self):
        super().__init__()
        self.words, self.scores = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.scores.weight = self.words.weight

    def forward(self, x):
        return self.scores(self.words(x).mean(dim=1).tanh())[:, :3]


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.words, self.layer = nn.Embedding(11, 6), kind(6, 8, batch_first=True, **options)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.layer(self.words(x))[0][:, -1])


class UsedTwice(nn.Module):
    """One layer in two places, under two names."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(5, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.numbers = nn.Embedding(11, 6), nn.Linear(5, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, words, numbers):
        return self.last((self.words(words).mean(dim=1) + self.numbers(numbers)).tanh())


@dataclass
class Output:
    logits: Tensor
    states: tuple[Tensor, ...]
    loss: Tensor | None = None


class ByName(nn.Module):
    """Inputs by name, a dataclass out, the mean loss if there are labels: as Hugging Face's."""

    def __init__(self):
        super().__init__()
        self.inner = TwoInputs()

    def forward(self, input_ids, numbers, labels=None):
        logits = self.inner(input_ids, numbers)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(logits, (logits.detach(),), loss)


class Decides(nn.Module):
    """The path depends on the data."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        rows = self.first(x)
        return self.last(torch.stack([row.relu() if row.sum() > 0 else row for row in rows]))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.first(x)
        hidden += 1
        return self.last(self.relu(hidden))


class Caches(nn.Module):
    """A buffer that is written to, and that nobody needs afterwards."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen = self.seen + 1
        return self.last(self.first(x).tanh())


class Checkpointed(nn.Module):
    """Computes its first layer once more on the way back, to save memory."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=False))


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.layer(self.words(x)).mean(dim=1))


def hooked():
    """A hook that changes what a layer gives, as some libraries do."""
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].register_forward_hook(lambda _, __, output: 3 * output)
    return module


def partly_frozen():
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), last(64)
    )
    module[0].requires_grad_(False)
    return module


def normalised():
    """Batch normalisation by statistics that stay as they are."""
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    module[1].running_mean.fill_(0.3)
    module[1].eval()
    return module


def parametrised():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 3))


def two_inputs():
    return cohort_of((words().inputs, cohort_like(5).inputs))


def by_name():
    return cohort_of({"input_ids": words().inputs, "numbers": cohort_like(5).inputs})


def with_labels():
    cohort = by_name()
    return cohort_of({**cohort.inputs, "labels": cohort.targets})


ZOO = {
    "tied": Animal(Tied, words),
    "gru": Animal(lambda: Recurrent(nn.GRU), words, batched=False),
    "lstm": Animal(lambda: Recurrent(nn.LSTM, num_layers=2), words, batched=False),
    "used twice": Animal(UsedTwice, lambda: cohort_like(5)),
    "two inputs": Animal(TwoInputs, two_inputs),
    "by name": Animal(ByName, by_name, lambda outputs, y: cross_entropy(outputs.logits, y)),
    "own loss": Animal(lambda: EachExample(ByName()), with_labels, own_loss),
    "decides": Animal(Decides, lambda: cohort_like(5), batched=False),
    "in place": Animal(InPlace, lambda: cohort_like(5)),
    "caches": Animal(Caches, lambda: cohort_like(5)),
    "checkpointed": Animal(Checkpointed, lambda: cohort_like(5), batched=False),
    "attends": Animal(Attends, words),
    "hooked": Animal(hooked, lambda: cohort_like(5)),
    "partly frozen": Animal(partly_frozen, lambda: images(2, 8)),
    "normalised": Animal(normalised, lambda: cohort_like(5)),
    "parametrised": Animal(parametrised, lambda: cohort_like(5)),
}
