"""The largest coordinates of each chunk of a vector, with an error that each client keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.methods.messages.base import Memory, Reply, Sum, Upload, Vectors, round_one
from fetchsgd.methods.messages.chosen import ChosenMessage
from fetchsgd.quantisers.base import Quantiser
from fetchsgd.wire import Header, Payload, SparseUpdate
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

ERROR = "error"


@dataclass(frozen=True)
class ChunkedMessage:
    """`per_chunk` coordinates of each chunk, and as many in proportion of a shorter last one.

    decay: what a client keeps of its error from round to round. What was sent is subtracted from
    it as the server reads it, so what rounding takes away is sent later.
    """

    dim: int
    chunk: int
    per_chunk: int
    decay: float

    linear: ClassVar[bool] = False

    @property
    def keeps_rounding(self) -> bool:
        """Whether numbers may be rounded to the nearest, since the rest is sent later."""
        return self.decay > 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.dim // self.chunk * self.per_chunk + self._of_the_last

    @property
    def _of_the_last(self) -> int:
        return -(-(self.dim % self.chunk) * self.per_chunk // self.chunk)

    @property
    def _chosen(self) -> ChosenMessage:
        """On the wire it is the same as a choice among all coordinates."""
        return ChosenMessage(self.dim, self.numbers, error=True)

    def compress(self, vectors: Vectors, round: int = 0) -> Tensor:
        raise NotImplementedError("clients choose one by one: there is no message of a mean")

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        raise NotImplementedError("what is sent depends on what clients choose")

    def places(self, rows: Float32[Tensor, "n dim"]) -> Int64[Tensor, "n numbers"]:
        """Which coordinates of each row are sent, in order."""
        whole = self.dim // self.chunk
        chunks = rows[:, : whole * self.chunk].abs().view(len(rows), whole, self.chunk)
        first = self.chunk * torch.arange(whole, device=rows.device)[:, None]
        found = [(chunks.topk(self.per_chunk, dim=2).indices + first).flatten(1)]
        if self._of_the_last:
            last = rows[:, whole * self.chunk :].abs().topk(self._of_the_last, dim=1).indices
            found.append(last + whole * self.chunk)
        return torch.cat(found, dim=1).sort(dim=1).values

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        upload: Upload,
        memory: Memory | None,
    ) -> Sum:
        before = 0.0 if memory is None else self.decay * memory[ERROR][clients]
        error = before + vectors
        places = self.places(error)
        rounded = upload.quantiser.round_rows(error.gather(1, places), upload.key, clients)
        sent = torch.zeros_like(vectors).scatter_(1, places, rounded.dequantise())
        if memory is not None:
            memory[ERROR][clients] = error - sent
        bytes = self._place_bytes(vectors) + rounded.section_bytes().sum()
        return Sum(shares @ sent, places.numel(), bytes)

    def _place_bytes(self, vectors: Float32[Tensor, "n dim"]) -> Float64[Tensor, ""]:
        """Headers and positions of that many messages."""
        count = torch.full((1,), self.numbers, device=vectors.device)
        return len(vectors) * (HEADER_BYTES + position_bytes(self.dim, count)[0])

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        if not self.decay:
            return None
        return {ERROR: torch.zeros(clients, self.dim, device=device)}

    def remember(self, vector: Float32[Tensor, " dim"], memory: Memory | None) -> Memory | None:
        return None if memory is None else {ERROR: self.decay * memory[ERROR] + vector[None]}

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        assert isinstance(payload, SparseUpdate)
        error = memory[ERROR]
        places = payload.indices.to(error.device)
        sent = torch.zeros_like(error[0]).scatter(
            0, places, payload.values.floats().to(places.device)
        )
        return {ERROR: error - sent}

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,
        client: int,
        round: int,
        upload: Upload,
    ) -> SparseUpdate:
        rows = vector[None] if memory is None else memory[ERROR]
        places = self.places(rows)
        values = round_one(rows.gather(1, places), client, upload)
        return SparseUpdate(self.dim, places[0], values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        self._chosen.check(header, round, quantiser)

    def read(self, payload: Payload) -> Reply:
        reply = self._chosen.read(payload)
        return replace(reply, counted=len(reply.numbers))

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        self._chosen.add(total, reply, weight)

    def predicted_bytes(self, payload: Payload) -> float:
        return self._chosen.predicted_bytes(payload)

    def most_bytes(self, quantiser: Quantiser) -> int:
        return self._chosen.most_bytes(quantiser)
