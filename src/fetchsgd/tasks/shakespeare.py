"""Shakespeare's plays by speaking role: a light language task, one character after another.

The paper's language task is PersonaChat with GPT-2 (section 5.3), which wants a GPU; this one
trains on a CPU in a minute or two. Clients are roles, as in LEAF: few speak much, many little, and
each in its own style. The network is a small transformer, for which the gradients of all clients
take one pass.
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from fetchsgd.tasks.base import ClientData, Task, perplexity
from fetchsgd.tasks.download import data_folder

FILE = "shakespeare_roles.json"
LENGTH = 80
TEST_SHARE = 5  # the last sequences of a role, one in this many, are for testing

PRESET: dict[str, dict[str, Any]] = {
    "train": {
        "epochs": 1.0,
        "baseline_epochs": 1.0,
        "clients_per_round": 5,
        # Cohorts are as wide as their most talkative role, so hardly two are of the same shape.
        "cuda_graphs": False,
    },
    "schedule": {"kind": "triangular", "peak": 0.3, "pivot": 0.25},
    "methods": {
        "fetchsgd": {"cols": 80_000},
        "fetchsgd-paper": {"k": 20_000, "cols": 80_000},
        "local_topk": {"k": 20_000},
        "true_topk": {"k": 20_000},
        "messages": {"download": {"step": 1.0, "by_size": True}},
        "fedavg": {"local": {"epochs": 2}},
    },
}

Roles = dict[str, list[str]]


def shakespeare(
    seed: int = 0,  # noqa: ARG001 (roles are who they are)
    folder: str = "",
    sequences_per_client: int = 10,
    workers: int = 0,
    width: int = 128,
    layers: int = 4,
) -> Task:
    """Shakespeare's plays by speaking role: a light language task, character by character.

    `folder` holds the JSON file; without it, shakespeare in FETCHSGD_DATA or ~/.cache/fetchsgd.

    sequences_per_client: the most of a role that is used, of 80 characters each; 0 is everything.
    workers: so many clients, to whom all roles are dealt; 0: each role is one.
    width, layers: of the network.
    """
    check_options(workers, width, layers)
    if sequences_per_client < 2 and sequences_per_client != 0:
        raise ValueError(
            "task.sequences_per_client must be 0 or at least 2, one to learn from and one to test, "
            f"got {sequences_per_client}"
        )
    path = find_file(folder)
    roles = read_roles(path, path.stat().st_mtime_ns)
    alphabet = alphabet_of(roles)
    clients = [sequences_of(speeches, alphabet) for speeches in roles.values()]
    clients = [each[: sequences_per_client or None] for each in clients if len(each) >= 2]
    if not clients:
        raise ValueError(f"{path} has no role with two sequences of {LENGTH} characters")
    learn = [each[: len(each) - held_out(each)] for each in clients]
    if workers:
        learn = dealt(learn, workers)
    test = np.concatenate([each[len(each) - held_out(each) :] for each in clients])
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in learn])])
    test_inputs, test_targets = inputs_and_targets(test)
    return Task(
        name="shakespeare",
        train=ClientData(*inputs_and_targets(np.concatenate(learn)), offsets),
        test_inputs=test_inputs,
        test_targets=test_targets,
        model=partial(CharacterModel, len(alphabet), width, layers),
        loss=mean_loss,
        quality=total_loss,
        metric="perplexity",
        higher_is_better=False,
        summary=perplexity,
        eval_batch=500,
        preset=PRESET,
    )


def check_options(workers: int, width: int, layers: int) -> None:
    if workers < 0:
        raise ValueError(f"task.workers must be at least 0, got {workers}")
    if width < 4 or width % 4:
        raise ValueError(f"task.width must be a multiple of 4, one for each head, got {width}")
    if layers < 1:
        raise ValueError(f"task.layers must be at least 1, got {layers}")


# --- the data


def find_file(folder: str) -> Path:
    base = Path(folder).expanduser().absolute() if folder else data_folder() / "shakespeare"
    path = base / FILE
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}; task.folder must name its folder, or the environment "
            'variable FETCHSGD_DATA the one above. It holds {"play/ROLE": ["speech", ...], ...}'
        )
    return path


@lru_cache(maxsize=1)  # a sweep makes the task once for each of its runs
def read_roles(
    path: Path,
    changed: int,  # noqa: ARG001 (a file that has changed is read again)
) -> Roles:
    try:
        found = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error.reason}") from error
    if not isinstance(found, dict):
        raise ValueError(f'{path} must hold {{"play/ROLE": ["speech", ...], ...}}')  # noqa: TRY004
    for role, speeches in found.items():
        texts = isinstance(speeches, list) and all(isinstance(text, str) for text in speeches)
        if not texts:
            raise ValueError(f"{path}: the speeches of {role!r} must be a list of texts")
    return found


def alphabet_of(roles: Roles) -> Int64[np.ndarray, " characters"]:
    """Every character that occurs, by its code, in order; the end of a line always does."""
    used = {"\n"}.union(*(set(text) for speeches in roles.values() for text in speeches))
    return np.array(sorted(map(ord, used)))


def sequences_of(
    speeches: list[str], alphabet: Int64[np.ndarray, " characters"]
) -> Int32[np.ndarray, "n length"]:
    """All that a role says, one line per speech, cut into pieces. The rest at the end is left out.

    Neighbours share a character, which one predicts and the other starts from.
    """
    codes = np.frombuffer("\n".join(speeches).encode("utf-32-le"), np.uint32)
    letters = np.searchsorted(alphabet, codes).astype(np.int32)
    count = max((len(letters) - 1) // LENGTH, 0)
    starts = LENGTH * np.arange(count)[:, None]
    return letters[starts + np.arange(LENGTH + 1)]


def held_out(sequences: Int32[np.ndarray, "n length"]) -> int:
    return max(len(sequences) // TEST_SHARE, 1)


def dealt(
    roles: list[Int32[np.ndarray, "n length"]], workers: int
) -> list[Int32[np.ndarray, "n length"]]:
    """Each role to the worker who has least so far, the largest first: shares much alike."""
    if workers > len(roles):
        raise ValueError(f"task.workers must be at most the {len(roles)} roles, got {workers}")
    shares: list[list[Int32[np.ndarray, "n length"]]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for role in sorted(roles, key=len, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(role)
        sizes[least] += len(role)
    return [np.concatenate(share) for share in shares]


def inputs_and_targets(
    sequences: Int32[np.ndarray, "n length"],
) -> tuple[Int32[Tensor, "n 80"], Int64[Tensor, "n 80"]]:
    letters = torch.from_numpy(sequences)
    return letters[:, :-1].contiguous(), letters[:, 1:].long()


# --- the loss


def mean_loss(
    outputs: Float[Tensor, "n 80 characters"], targets: Int64[Tensor, "n 80"]
) -> Float[Tensor, " n"]:
    return cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(dim=1)


def total_loss(
    outputs: Float[Tensor, "n 80 characters"], targets: Int64[Tensor, "n 80"]
) -> Float[Tensor, "n 2"]:
    """The loss of each sequence, summed over its characters, and how many these are."""
    totals = LENGTH * mean_loss(outputs, targets)
    return torch.stack([totals, torch.full_like(totals, LENGTH)], dim=1)


# --- the network


class CharacterModel(nn.Module):
    """A transformer of four layers: 822,602 weights for Shakespeare's 74 characters."""

    def __init__(self, characters: int, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.letters = nn.Embedding(characters, width)
        self.places = nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.outputs = nn.Linear(width, characters)

    def forward(self, letters: Int[Tensor, "n 80"]) -> Float[Tensor, "n 80 characters"]:
        # Places for every sequence, though they are the same: one pass wants examples first.
        places = torch.arange(letters.shape[1], device=letters.device).expand(letters.shape)
        x = self.letters(letters) + self.places(places)
        scores: Tensor = self.outputs(self.norm(self.layers(x)))
        return scores


class Layer(nn.Module):
    """Causal attention, then a feed-forward network, both with residual connections."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm_between = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "n length width"]) -> Float[Tensor, "n length width"]:
        x = x + self.attend(self.norm_before(x))
        inner: Tensor = self.narrow(gelu(self.wide(self.norm_between(x))))
        return x + inner

    def attend(self, x: Float[Tensor, "n length width"]) -> Float[Tensor, "n length width"]:
        """Written out: torch's own kernel on a CPU cannot serve many clients side by side."""
        n, length, width = x.shape
        parts = self.queries_keys_values(x).view(n, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # (n, heads, length, width / heads)
        scores = queries @ keys.mT * (width // self.heads) ** -0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        shares = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        mixed: Tensor = self.mixed((shares @ values).transpose(1, 2).reshape(n, length, width))
        return mixed
