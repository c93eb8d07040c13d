"""`Bits` with the interface that callers used before there were quantisers. It will go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.quantisers.base import RoundedRows
from fetchsgd.quantisers.bits import Bits, Width
from fetchsgd.randomness import number
from fetchsgd.wire import Values
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes


@dataclass(frozen=True)
class Upload:
    """A quantiser, and the seed of a run."""

    bits: int
    seed: int

    @property
    def quantiser(self) -> Bits:
        return Bits(cast(Width, self.bits))

    @property
    def is_exact(self) -> bool:
        return self.quantiser.exact

    def merge(
        self,
        rows: Float32[Tensor, "n count"],
        weights: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        round: int,
    ) -> tuple[Float32[Tensor, " count"], Float64[Tensor, ""]]:
        """The weighted sum of what clients with these numbers send, and the bytes of all."""
        sent = self._sent(rows, clients, round)
        return sent.weighted_sum(weights), _message_bytes(sent)

    def write(self, cells: Float32[Tensor, " count"], client: int, round: int) -> Values:
        """One client's numbers as it sends them."""
        return self._sent(cells[None], torch.tensor([client], device=cells.device), round).row(0)

    def send_chosen(
        self,
        dim: int,
        values: Float32[Tensor, "n k"],
        clients: Int64[Tensor, " n"],
        round: int,
    ) -> tuple[Float32[Tensor, "n k"], Float64[Tensor, ""]]:
        """Values that clients chose out of dim: as the server reads them, and the bytes of all."""
        n, k = values.shape
        sent = self._sent(values, clients, round)
        return sent.dequantise(), _place_bytes(n, k, dim, values.device) + _message_bytes(sent)

    def chosen_bytes(self, n: int, k: int, dim: int, device: torch.device) -> Float64[Tensor, ""]:
        """Of n messages of k floats out of dim, with their places."""
        return _place_bytes(n, k, dim, device) + self.float_bytes(n, k)

    def float_bytes(self, n: int, count: int) -> Float64[Tensor, ""]:
        """Of n messages of `count` floats."""
        return torch.tensor(n * (HEADER_BYTES + count * self.bits / 8), dtype=torch.float64)

    def _sent(
        self, rows: Float32[Tensor, "n count"], clients: Int64[Tensor, " n"], round: int
    ) -> RoundedRows:
        return self.quantiser.round_rows(rows, number(self.seed, "quantise", round), clients)


def _message_bytes(sent: RoundedRows) -> Float64[Tensor, ""]:
    sections = sent.section_bytes()
    return sections.sum() + HEADER_BYTES * len(sections)


def _place_bytes(n: int, k: int, dim: int, device: torch.device) -> Float64[Tensor, ""]:
    """Of the places of k numbers out of dim, in n messages."""
    return n * position_bytes(dim, torch.full((1,), k, device=device))[0]
