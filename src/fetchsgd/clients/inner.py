"""Inner optimisers: those of torch.optim, one for each client, over rows of weights side by side.

What an optimiser remembers is kept by name, a row for each client, so that it can be stored with
the clients' other memory. Before the first step all of it is zero, from which both optimisers
start as torch starts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.local_work import LocalWork

Rows = dict[str, Tensor]  # what optimisers remember: a row for each client
VECTORS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
STEP = "step"  # AdamW's: how many have been taken
INNER = "inner."  # before these names, among all that clients remember


def first_rows(work: LocalWork, clients: int, dim: int, device: torch.device) -> Rows | None:
    """What this many clients remember before their first round; None if they keep nothing."""
    if not work.keeps_state:
        return None
    rows = {name: torch.zeros(clients, dim, device=device) for name in VECTORS[work.optimizer]}
    if work.optimizer == "adamw":
        rows[STEP] = torch.zeros(clients, device=device)
    return rows


def with_inner(memory: Rows | None, rows: Rows | None) -> Rows | None:
    """All that clients remember: for the method's messages, and of their optimisers."""
    if rows is None:
        return memory
    return (memory or {}) | {INNER + name: part for name, part in rows.items()}


def without_inner(memory: Rows | None) -> tuple[Rows | None, Rows]:
    """The two apart; the first is None if it is empty."""
    memory = memory or {}
    inner = {n.removeprefix(INNER): part for n, part in memory.items() if n.startswith(INNER)}
    others = {name: part for name, part in memory.items() if not name.startswith(INNER)}
    return others or None, inner


class InnerOptimizer:
    """Steps the rows of `local` in place, a client each.

    decay: AdamW's weight decay. kept: what these clients remember; `store` writes it back.
    """

    def __init__(
        self,
        work: LocalWork,
        local: Float32[Tensor, "n dim"],
        decay: float = 0.0,
        kept: Rows | None = None,
    ) -> None:
        self.clients = [nn.Parameter(row, requires_grad=False) for row in local]
        self.optimizer: torch.optim.Optimizer
        if work.optimizer == "adamw":
            betas = (work.beta1, work.beta2)
            self.optimizer = torch.optim.AdamW(
                self.clients, lr=0.0, betas=betas, eps=work.eps, weight_decay=decay
            )
        else:
            self.optimizer = torch.optim.SGD(self.clients, lr=0.0, momentum=work.momentum)
        self.kept = kept
        if kept is not None:
            self._recall(kept)

    def _recall(self, kept: Rows) -> None:
        vectors = {name: rows for name, rows in kept.items() if name != STEP}
        # torch counts steps on the CPU.
        counts = kept[STEP].cpu() if STEP in kept else None
        for at, client in enumerate(self.clients):
            state = self.optimizer.state[client]
            state.update({name: rows[at].clone() for name, rows in vectors.items()})
            if counts is not None:
                state[STEP] = counts[at].clone()

    def step(
        self, gradients: Float32[Tensor, "n dim"], active: Iterable[bool], rate: float
    ) -> None:
        """One step of each active client; the others keep their weights and what they remember."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for client, gradient, is_active in zip(self.clients, gradients, active, strict=True):
            client.grad = gradient if is_active else None
        self.optimizer.step()

    def store(self) -> None:
        """Write what clients remember into the rows that were given."""
        for name, rows in (self.kept or {}).items():
            states = [self.optimizer.state[client][name] for client in self.clients]
            rows.copy_(torch.stack(states))


def local_batches(
    cohort: Cohort, work: LocalWork, generator: torch.Generator
) -> Iterator[tuple[Cohort, int]]:
    """The batches of a round's local steps, each for clients with more than so many examples.

    Batches of an epoch go through a client's data in a random order. With a number of steps, a
    client that has come to the end of its data begins again, in another order.
    """
    most = cohort.present.shape[1]
    size = min(work.batch_size or most, most)
    if size == most:
        for _ in range(work.steps or work.epochs):
            yield cohort, 0
    elif work.steps:
        for batch in _endless(cohort, work.steps, size, generator):
            yield batch, 0
    else:
        for epoch in range(work.epochs):
            order = cohort.shuffled(generator, epoch)
            for start in range(0, most, size):
                yield cohort.take(order[:, start : start + size]), start


def _endless(cohort: Cohort, steps: int, size: int, generator: torch.Generator) -> Iterator[Cohort]:
    most, device = cohort.present.shape[1], cohort.present.device
    counts = cohort.present.sum(dim=1)
    per_pass = ((counts + size - 1) // size).clamp(min=1)
    on_host = per_pass.tolist()
    # Wide enough for the last batch of the largest client, of which a part may be absent.
    order = torch.zeros(len(counts), -(-most // size) * size, dtype=torch.int64, device=device)
    for step in range(steps):
        if any(step % batches == 0 for batches in on_host):
            begins = (step % per_pass == 0)[:, None]
            order[:, :most] = torch.where(begins, cohort.shuffled(generator, step), order[:, :most])
        places = size * (step % per_pass)[:, None] + torch.arange(size, device=device)
        batch = cohort.take(order.gather(1, places))
        yield batch.with_present(batch.present & (places < counts[:, None]))
