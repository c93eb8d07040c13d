"""Some coordinates of a vector, which each client chooses by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.methods.largest import largest_mask, largest_sum
from fetchsgd.methods.messages.base import (
    Memory,
    Reply,
    Sum,
    Upload,
    Vectors,
    check_round_and_values,
    refuse_unless,
    round_one,
)
from fetchsgd.quantisers.base import Quantiser
from fetchsgd.wire import (
    Floats,
    Header,
    Payload,
    SparseUpdate,
)
from fetchsgd.wire.header import SPARSE
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes


@dataclass(frozen=True)
class ChosenMessage:
    """The k largest coordinates of a client's own vector, or of what it remembers.

    error: clients keep what they did not send, and add it next time. momentum: of their own. What
    was sent is cleared from both (Lin et al. 2018).
    """

    dim: int
    k: int
    error: bool = False
    momentum: float = 0.0

    linear: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.k

    def compress(self, vectors: Vectors, round: int = 0) -> Tensor:
        raise NotImplementedError("clients choose one by one: there is no message of a mean")

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        raise NotImplementedError("what is sent depends on what clients choose")

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        upload: Upload,
        memory: Memory | None,
    ) -> Sum:
        fixed = upload.quantiser.fixed_bytes(self.k)
        places = self._place_bytes(vectors)
        if memory is None and upload.quantiser.exact:
            assert fixed is not None
            return Sum(*largest_sum(vectors, shares, self.k), places + len(vectors) * fixed)
        chosen, vectors = self._choose(vectors, clients, memory)
        if upload.quantiser.exact:
            assert fixed is not None
            sent = torch.where(chosen, vectors, 0)
            return Sum(shares @ sent, sent.count_nonzero(), places + len(vectors) * fixed)
        # Row after row, in order of index, as they are written; without waiting for their number.
        n, dim = vectors.shape
        at = torch.nonzero_static(chosen.flatten(), size=n * self.k).squeeze(1)
        values = vectors.flatten()[at].view(n, self.k)
        rounded = upload.quantiser.round_rows(values, upload.key, clients)
        # Rows that are summed in a fixed order: sums in place would differ from run to run.
        read = rounded.dequantise().flatten()
        sent = vectors.new_zeros(n * dim).scatter_(0, at, read).view(n, dim)
        return Sum(shares @ sent, values.count_nonzero(), places + rounded.section_bytes().sum())

    def _choose(
        self, vectors: Float32[Tensor, "n dim"], clients: Int64[Tensor, " n"], memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """Which coordinates each client sends, and of which vector."""
        if memory is None:
            return largest_mask(vectors, self.k), vectors
        kept = self._remember({name: rows[clients] for name, rows in memory.items()}, vectors)
        chosen = largest_mask(kept["error"], self.k)
        for name, rows in kept.items():
            memory[name][clients] = rows.masked_fill(chosen, 0)
        return chosen, kept["error"]

    def _remember(self, memory: Memory, vectors: Tensor) -> Memory:
        momentum = self.momentum * memory["momentum"] + vectors if self.momentum else vectors
        error = memory["error"] + momentum if self.error else momentum
        return {"momentum": momentum, "error": error}

    def _place_bytes(self, vectors: Float32[Tensor, "n dim"]) -> Float64[Tensor, ""]:
        """Headers and positions of that many messages."""
        n, dim = vectors.shape
        count = torch.full((1,), self.k, device=vectors.device)
        return n * (HEADER_BYTES + position_bytes(dim, count)[0])

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        if not self.error and not self.momentum:
            return None
        names = ("momentum", "error")
        return {name: torch.zeros(clients, self.dim, device=device) for name in names}

    def remember(self, vector: Float32[Tensor, " dim"], memory: Memory | None) -> Memory | None:
        return None if memory is None else self._remember(memory, vector[None])

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        assert isinstance(payload, SparseUpdate)
        return {
            name: rows.index_fill(1, payload.indices.to(rows.device), 0)
            for name, rows in memory.items()
        }

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,
        client: int,
        round: int,
        upload: Upload,
    ) -> SparseUpdate:
        rows = vector[None] if memory is None else memory["error"]
        places = largest_mask(rows, self.k)[0].nonzero().squeeze(1)
        values = round_one(rows[:, places], client, upload)
        return SparseUpdate(self.dim, places, values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        fits = header.dim == self.dim and header.count <= self.k and header.since == 0
        refuse_unless(header.kind == SPARSE and fits)
        check_round_and_values(header, round, quantiser)

    def read(self, payload: Payload) -> Reply:
        assert isinstance(payload, SparseUpdate)
        numbers = payload.values.floats()
        # Numbers that few bits have rounded to zero count as well.
        is_rounded = not isinstance(payload.values, Floats)
        counted = len(numbers) if is_rounded else int(numbers.count_nonzero())
        return Reply(numbers, counted, payload.indices)

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        assert reply.places is not None
        numbers = reply.numbers.to(total.device, torch.float64)
        total.index_add_(0, reply.places.to(total.device), numbers, alpha=weight)

    def predicted_bytes(self, payload: Payload) -> float:
        assert isinstance(payload, SparseUpdate)
        places = position_bytes(self.dim, torch.tensor([len(payload.indices)]))[0]
        return HEADER_BYTES + payload.values.section_bytes() + float(places)

    def most_bytes(self, quantiser: Quantiser) -> int:
        # A loose bound on positions: 8 bytes per gap, a bitmap, and a table.
        return HEADER_BYTES + quantiser.most_bytes(self.k) + 8 * self.k + self.dim // 8 + 4096
