"""A server's step piece by piece, in the memory of its state: for models that fill the memory.

The same lines 11 to 14 as in_vectors.py, which makes new vectors and leaves the old ones alone.
Here no vector of dim numbers is made: what a sketch says of the gradient is read where it is
needed, and momentum and error are overwritten. They may be of 16 bits; arithmetic is in 32, and
what does not fit is rounded at random, so that many small changes add up to what they should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from fetchsgd.methods.base import State, ahead
from fetchsgd.methods.delivery import Deliver, Delivered
from fetchsgd.vector import SparseVector

# Coordinates of a piece, of which half a dozen floats each are in memory.
PIECE = {"cpu": 1 << 20, "cuda": 1 << 25}

# From a first coordinate and a count to an estimate of the mean gradient there.
Read = Callable[[int, int], Float32[Tensor, " count"]]


def pieces(dim: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Where pieces begin, and how many coordinates they have."""
    size = PIECE[device.type]
    for first in range(0, dim, size):
        yield first, min(size, dim - first)


@dataclass
class Largest:
    """The k largest of numbers that come piece by piece in order; of equals the first.

    Those that may be among them wait in memory that is taken once: had each piece memory of its
    own, it would lie between that of other numbers, which could then not be given back.
    """

    k: int
    count: int = 0  # of those that wait
    least: float | None = None  # of k numbers so far: what is not above it is not among them
    indices: Int64[Tensor, " room"] | None = None
    sizes: Float32[Tensor, " room"] | None = None

    def add(self, first: int, sizes: Float32[Tensor, " n"]) -> None:
        """Numbers of coordinates from `first` on, none below zero; no piece is above the first."""
        if self.least is not None:
            candidates = sizes > self.least
        elif len(sizes) > self.k:
            candidates = sizes >= sizes.topk(self.k, sorted=False).values.min()
        else:
            candidates = torch.ones_like(sizes, dtype=torch.bool)
        chosen = candidates.nonzero().squeeze(1)
        own_indices, own_sizes = self._with_room(sizes, len(chosen))
        new = slice(self.count, self.count + len(chosen))
        torch.add(chosen, first, out=own_indices[new])
        torch.index_select(sizes, 0, chosen, out=own_sizes[new])
        self.count = new.stop
        if self.least is None:
            self._shrink(own_indices, own_sizes)

    def _with_room(self, piece: Float32[Tensor, " n"], more: int) -> tuple[Tensor, Tensor]:
        """The memory of those that wait, where there is room for so many more of a piece."""
        if self.indices is None or self.sizes is None:
            room = self.k + max(self.k, len(piece))
            self.indices = torch.empty(room, dtype=torch.int64, device=piece.device)
            self.sizes = torch.empty(room, device=piece.device)
        if self.count + more > len(self.sizes):
            self._shrink(self.indices, self.sizes)
        return self.indices, self.sizes

    def _shrink(self, all_indices: Tensor, all_sizes: Tensor) -> None:
        """Leave the k largest, in order of index."""
        indices, sizes = all_indices[: self.count], all_sizes[: self.count]
        if self.count < self.k:
            return
        order = sizes.sort(descending=True, stable=True).indices[: self.k].sort().values
        self.count = self.k
        all_indices[: self.k], all_sizes[: self.k] = indices[order], sizes[order]
        self.least = float(all_sizes[: self.k].min())

    def taken(self) -> Int64[Tensor, " k"]:
        """Where they are, in order."""
        assert self.indices is not None
        assert self.sizes is not None
        self._shrink(self.indices, self.sizes)
        return self.indices[: self.count].clone()


@dataclass(frozen=True)
class PiecesServer:
    """Its options are those of `VectorServer`."""

    dim: int
    k: int
    momentum: float
    mask_momentum: bool
    revisit: float
    revisit_rounds: int
    nesterov: bool

    def send(
        self, read: Read, state: State, rate: float, deliver: Deliver, round: int
    ) -> Delivered:
        """Lines 11 to 14; `state` holds what is carried on afterwards."""
        error = state["error"]
        found = Largest(self.k) if self.k else None
        draw = torch.Generator(error.device).manual_seed(round)
        for first, count in pieces(self.dim, error.device):
            part = slice(first, first + count)
            gradient = read(first, count)
            momentum = (self.momentum * state["momentum"][part].float()).add_(gradient)
            put_rounded(state["momentum"][part], momentum, draw)
            step = ahead(self.momentum, momentum, gradient) if self.nesterov else momentum
            put_rounded(error[part], (rate * step).add_(error[part]), draw)
            if found is not None:
                found.add(first, self._counted(error[part].abs().float(), state, part, round))
        if found is None:
            return self._all_delivered(error, deliver, draw)
        return self._delivered(found.taken(), state, deliver, round)

    def _all_delivered(
        self, error: Float[Tensor, " dim"], deliver: Deliver, draw: torch.Generator
    ) -> Delivered:
        """Without k; what is sent is as long as the model, so vectors of its length are made."""
        wanted = error.float().clone()
        sent = deliver(wanted)
        put_rounded(error, wanted - sent.dense, draw)
        return sent

    def _counted(self, sizes: Tensor, state: State, part: slice, round: int) -> Tensor:
        if self.revisit == 1:
            return sizes
        lately: Bool[Tensor, " n"] = state["sent"][part] >= round - self.revisit_rounds
        return torch.where(lately, self.revisit * sizes, sizes)

    def _delivered(
        self, indices: Int64[Tensor, " k"], state: State, deliver: Deliver, round: int
    ) -> Delivered:
        error, momentum = state["error"], state["momentum"]
        wanted = SparseVector.trusted(self.dim, indices, error[indices].float())
        sent = deliver(wanted)
        error[indices] = (wanted.values - sent.sparse.values).to(error.dtype)
        stays = sent.sparse.values == 0
        if self.mask_momentum:
            momentum[indices] = torch.where(stays, momentum[indices], 0)
        if self.revisit > 1:
            last = torch.where(stays, state["sent"][indices], round)
            state["sent"][indices] = last.int()
        return sent


def put_rounded(
    into: Float[Tensor, " n"], values: Float32[Tensor, " n"], draw: torch.Generator
) -> None:
    """Write numbers; to 16 bits rounded up or down at random, so that their mean is right."""
    if into.dtype != torch.bfloat16:
        into.copy_(values)
        return
    # bfloat16 is the upper half of a float32: add a random lower half, and cut it off.
    bits = values.contiguous().view(torch.int32)
    lower = torch.randint(0, 1 << 16, bits.shape, generator=draw, device=bits.device,
                          dtype=torch.int32)  # fmt: skip
    up = (bits + lower) >> 16
    into.view(torch.int16).copy_(up)
