"""Messages whose mean is the message of the mean: whole vectors, and sketches of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

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
from fetchsgd.methods.messages.merge_loops import add_weighted
from fetchsgd.privacy.clipping import Limit, clip
from fetchsgd.quantisers.base import Quantiser, RoundedRows
from fetchsgd.quantisers.levels import Quantised
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.sums import LevelRows
from fetchsgd.wire import (
    DenseVector,
    Header,
    MismatchError,
    Payload,
    SketchTable,
    Values,
)
from fetchsgd.wire.header import DENSE, SKETCHES
from fetchsgd.wire.sizes import HEADER_BYTES


@dataclass(frozen=True)
class _Stateless:
    """Clients that remember nothing."""

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:  # noqa: ARG002
        return None

    def remember(self, vector: Tensor, memory: Memory | None) -> Memory | None:  # noqa: ARG002
        return None

    def forget(self, memory: Memory, payload: Payload) -> Memory:  # noqa: ARG002
        return memory


class Watcher(Protocol):
    """Looks on (fetchsgd.diagnose)."""

    def __call__(self, vectors: Vectors, sent: Tensor, rounded: Rounded | None = None) -> None:
        """Vectors, what they were compressed to, and what rounding made of that, if it did."""
        ...


class Rounded(NamedTuple):
    """Clients' messages as they were rounded, with the share of each in the mean."""

    rows: RoundedRows
    shares: Float32[Tensor, " n"]


@dataclass(frozen=True)
class LinearMessage(_Stateless):
    """What dense vectors and sketches share."""

    watcher: Watcher | None = field(default=None, kw_only=True)

    linear: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        raise NotImplementedError

    def compress(self, vectors: Vectors, round: int = 0) -> Tensor:
        sent = self._compressed(vectors, round)
        if self.watcher is not None:
            self.watcher(vectors, sent)
        return sent

    def _compressed(self, vectors: Vectors, round: int) -> Tensor:
        raise NotImplementedError

    def payload(self, values: Values, round: int) -> Payload:
        raise NotImplementedError

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        upload: Upload,
        memory: Memory | None,  # noqa: ARG002
    ) -> Sum:
        n = len(vectors)
        if upload.limit is not None and upload.quantiser.exact:
            return self._merge_limited(vectors, shares, upload, upload.limit)
        if upload.quantiser.exact:
            # The sum of the messages is the message of the sum, of which there is only one.
            return Sum(
                self.compress(shares @ vectors, upload.round), *self.exact_cost(n, upload.quantiser)
            )
        rows = self._compressed(vectors, upload.round)
        sent = rows.flatten(1)
        if upload.limit is not None:
            sent = clip(sent, upload.limit.longest).rows
        rounded = upload.quantiser.round_rows(sent, upload.key, clients)
        if self.watcher is not None:
            self.watcher(vectors, rows, Rounded(rounded, shares))
        if isinstance(rounded, LevelRows):
            # Whole numbers, which the server reads once all are added (ModularRound.open).
            cost = self.exact_cost(n, upload.quantiser)
            return Sum(rounded.sum(), *cost, clipped=rounded.clipped)
        total = rounded.weighted_sum(shares).view(rows.shape[1:])
        bytes = rounded.section_bytes().sum() + HEADER_BYTES * n
        sizes = rounded.sizes() if hasattr(rounded, "sizes") else None
        return Sum(total, rows.numel(), bytes, sizes)

    def _merge_limited(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        upload: Upload,
        limit: Limit,
    ) -> Sum:
        """Each message no longer than the clip, and numbers as they are."""
        rows = self._compressed(vectors, upload.round)
        clipped, within = clip(rows.flatten(1), limit.longest)
        total = (shares @ clipped).view(rows.shape[1:])
        return Sum(total, *self.exact_cost(len(vectors), upload.quantiser), within=within)

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        """Numbers and bytes of this many clients, where sizes do not depend on the values."""
        section = quantiser.fixed_bytes(self.numbers)
        assert section is not None
        return clients * self.numbers, float(clients * (HEADER_BYTES + section))

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,  # noqa: ARG002
        client: int,
        round: int,
        upload: Upload,
    ) -> Payload:
        cells = self.compress(vector[None], round).flatten(1)
        if upload.limit is not None:
            cells = clip(cells, upload.limit.longest).rows
        return self.payload(round_one(cells, client, upload), round)

    def read(self, payload: Payload) -> Reply:
        values, size = payload.values, getattr(payload.values, "size", None)
        held = values if isinstance(values, Quantised) else values.floats().view(self.shape)
        return Reply(held, self.numbers, size=size, shape=self.shape)

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        flat = total.view(-1)
        if total.device.type != "cpu":
            flat.add_(reply.numbers.reshape(-1).to(total.device, torch.float64), alpha=weight)
        elif isinstance(reply.held, Tensor):
            numbers = reply.held.cpu().reshape(-1)
            add_weighted(flat.numpy(), numbers.detach().numpy(), float(weight))
        else:
            reply.held.add_to(flat.numpy(), float(weight))

    def predicted_bytes(self, payload: Payload) -> float:
        return HEADER_BYTES + payload.values.section_bytes()

    def most_bytes(self, quantiser: Quantiser) -> int:
        return HEADER_BYTES + quantiser.most_bytes(self.numbers)


@dataclass(frozen=True)
class DenseMessage(LinearMessage):
    """A whole vector."""

    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.dim

    def _compressed(self, vectors: Vectors, round: int) -> Tensor:  # noqa: ARG002
        return flatten(vectors)

    def payload(self, values: Values, round: int) -> Payload:
        return DenseVector(values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        refuse_unless(header.kind == DENSE and header.count == self.dim)
        check_round_and_values(header, round, quantiser)


@dataclass(frozen=True)
class SketchMessage(LinearMessage):
    """The table of a sketch of the vector. `fresh`: each round has a hash of its own."""

    sketch: CountSketch
    fresh: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sketch.rows, self.sketch.cols

    @property
    def numbers(self) -> int:
        return self.sketch.num_cells

    def at(self, round: int) -> CountSketch:
        """The sketch of a round."""
        return self.sketch.for_round(round) if self.fresh else self.sketch

    def _compressed(self, vectors: Vectors, round: int) -> Table:
        return self.at(round).sketch(vectors)

    def payload(self, values: Values, round: int) -> Payload:
        s = self.at(round)
        assert s.block is not None
        return SketchTable(s.dim, s.rows, s.cols, s.block, s.seed, values, round, s.hash)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        s = self.at(round)
        shape = header.dim, header.rows, header.cols
        refuse_unless(header.kind in SKETCHES.values() and shape == (s.dim, s.rows, s.cols))
        check_round_and_values(header, round, quantiser)
        if (header.kind, header.block, header.seed) != (SKETCHES[s.hash], s.block, s.seed):
            raise MismatchError(
                "seed", "the sketch has another hash: its kind, its seed or its block differs"
            )


def flatten(vectors: Vectors) -> Tensor:
    """Pieces of one vector as the vector."""
    return torch.cat([v.flatten() for v in vectors]) if isinstance(vectors, list) else vectors
