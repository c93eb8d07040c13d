"""A cohort's clients, spread over processes: which are whose, and the sum of what all send.

Everything random is drawn as one process would draw it, by round and client or for the cohort as a
whole. So who computes a client changes nothing but the order in which floats are added; whole
numbers (sums modulo 2^b) come out the same to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.local_work import LocalWork
from fetchsgd.methods import Memory, Sum
from fetchsgd.ranks import ALONE, Ranks


@dataclass(frozen=True, eq=False)
class Share:
    """Which clients of a cohort are this process's: their places there, in rising order.

    of: how many clients the cohort has. all_busy: whether every process has some.
    """

    places: NDArray[np.int64]
    of: int
    all_busy: bool

    @property
    def only(self) -> NDArray[np.int64] | None:
        """None if that is all of them."""
        return None if len(self.places) == self.of else self.places


@dataclass(frozen=True)
class Spread:
    """Over these processes."""

    ranks: Ranks = ALONE

    def by_cost(self, costs: NDArray[np.int64]) -> Share:
        """Clients one after another, so many that all processes have about as much to do.

        The first process always has some.
        """
        before = np.cumsum(costs) - costs
        owners = before * self.ranks.size // max(int(costs.sum()), 1)
        return self._share(np.minimum(owners, self.ranks.size - 1))

    def by_number(self, clients: NDArray[np.int64]) -> Share:
        """The same process has a client in every round, and so what it remembers."""
        return self._share(clients % self.ranks.size)

    def _share(self, owners: NDArray[np.int64]) -> Share:
        busy = bool(np.bincount(owners, minlength=self.ranks.size).all())
        return Share(np.flatnonzero(owners == self.ranks.rank), len(owners), busy)

    def own_memory(self, memory: Memory | None) -> Memory | None:
        """What the clients of this process remember; of others nothing is known here."""
        if memory is None or self.ranks.is_alone:
            return memory
        own = {name: torch.zeros_like(rows) for name, rows in memory.items()}
        mine = slice(self.ranks.rank, None, self.ranks.size)
        for name, rows in memory.items():
            own[name][mine] = rows[mine]
        return own

    def whole_memory(self, memory: Memory | None) -> Memory | None:
        """What all clients remember: each row comes from the one process that knows it."""
        if memory is None or self.ranks.is_alone:
            return memory
        return {name: self.ranks.sum(rows.clone()) for name, rows in memory.items()}

    def summed(self, sent: Sum, loss: Tensor | None, share: Share) -> tuple[Sum, Tensor]:
        """Over all processes, and the mean loss; None is of one without clients in this round."""
        if self.ranks.is_alone:
            assert loss is not None
            return sent, loss
        total = self.ranks.sum(sent.total)
        device = total.device
        has_sizes, has_within = self._which(sent, share, device)
        counts = (sent.numbers, sent.bytes, sent.clipped, sent.within, loss)
        stats = torch.stack([_number(part, device) for part in counts])  # whole ones up to 2^53
        numbers, bytes, clipped, within, mean_loss = self.ranks.sum(stats).unbind()
        sizes = self._sizes(sent, share, device) if has_sizes else None
        whole = Sum(
            total, numbers.long(), bytes, sizes, within.long() if has_within else None,
            clipped.long(),
        )  # fmt: skip
        return whole, mean_loss.float()

    def _which(self, sent: Sum, share: Share, device: torch.device) -> tuple[bool, bool]:
        """Whether there are sizes and counts within the clip, which only those who send know."""
        own = [sent.sizes is not None, sent.within is not None]
        if share.all_busy:
            return own[0], own[1]
        flags = self.ranks.most(torch.tensor(own, dtype=torch.int64, device=device)).tolist()
        return bool(flags[0]), bool(flags[1])

    def _sizes(self, sent: Sum, share: Share, device: torch.device) -> Tensor:
        """In the order of the cohort."""
        sizes = torch.zeros(share.of, dtype=torch.float64, device=device)
        if sent.sizes is not None:
            sizes[torch.from_numpy(share.places).to(device)] = sent.sizes.to(device)
        return self.ranks.sum(sizes)


NOT_SPREAD = Spread()


def _number(part: float | Tensor | None, device: torch.device) -> Tensor:
    return torch.as_tensor(0 if part is None else part, dtype=torch.float64, device=device)


def drawn_orders(
    sizes: NDArray[np.int64], most: int, at_once: int, work: LocalWork, generator: torch.Generator
) -> Float32[Tensor, "n passes m"] | None:
    """What orders each client's examples, as one process draws it for clients of these sizes.

    It does so in each epoch, or where there is a number of steps in each step in which one of the
    clients that are computed side by side, `at_once` of them, begins anew. None where no order is
    needed.
    """
    if not 0 < work.batch_size < most:
        return None
    device = generator.device
    drawn = torch.zeros(len(sizes), work.steps or work.epochs, most, device=device)
    for start in range(0, len(sizes), at_once):
        chunk = drawn[start : start + at_once]
        for n in _when(sizes[start : start + at_once], work):
            shape = len(chunk), most
            chunk[:, n] = torch.rand(shape, generator=generator, device=device)
    return drawn


def _when(sizes: NDArray[np.int64], work: LocalWork) -> list[int]:
    """In which epochs or steps orders are drawn."""
    if not work.steps:
        return list(range(work.epochs))
    passes = {max(-(-int(size) // work.batch_size), 1) for size in sizes}
    return [step for step in range(work.steps) if any(step % batches == 0 for batches in passes)]
