"""What a client's numbers become on the way up, and how many bytes they take (Algorithm 1, line 8).

Below 32 bits every client rounds its own numbers at random, so that the mean over the cohort stays
right and the noise averages out. The dice depend on the run's seed, the round and the client alone:
a simulated client and a real one round alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.randomness import number
from fetchsgd.wire import Floats, QuantisedRows, Values, quantise_rows, round_to_bfloat16
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes, quantised_bytes


@dataclass(frozen=True)
class Upload:
    """How numbers are written: 32 bits, 16 (bfloat16), or 8, 6, 4, 3, 2 with a scale per run."""

    bits: int
    seed: int

    @property
    def is_exact(self) -> bool:
        return self.bits == 32

    def merge(
        self,
        rows: Float32[Tensor, "n count"],
        weights: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        round: int,
    ) -> tuple[Float32[Tensor, " count"], Float64[Tensor, ""]]:
        """The weighted sum of what clients with these numbers send, and the bytes of all."""
        if self.bits >= 16:
            return weights @ self._floats(rows, clients, round), self.float_bytes(*rows.shape)
        sent = self._quantised(rows, clients, round)
        return sent.weighted_sum(weights), self._quantised_bytes(sent)

    def write(self, cells: Float32[Tensor, " count"], client: int, round: int) -> Values:
        """One client's numbers as it sends them."""
        clients = torch.tensor([client], device=cells.device)
        if self.bits < 16:
            return self._quantised(cells[None], clients, round).row(0)
        floats = self._floats(cells[None], clients, round)[0]
        return Floats(floats if self.is_exact else floats.bfloat16())

    def send_chosen(
        self,
        dim: int,
        values: Float32[Tensor, "n k"],
        clients: Int64[Tensor, " n"],
        round: int,
    ) -> tuple[Float32[Tensor, "n k"], Float64[Tensor, ""]]:
        """Values that clients chose out of dim: as the server reads them, and the bytes of all."""
        n, k = values.shape
        if self.bits >= 16:
            bytes = self.chosen_bytes(n, k, dim, values.device)
            return self._floats(values, clients, round), bytes
        sent = self._quantised(values, clients, round)
        places = _place_bytes(n, k, dim, values.device)
        return sent.dequantise(), places + self._quantised_bytes(sent)

    def chosen_bytes(self, n: int, k: int, dim: int, device: torch.device) -> Float64[Tensor, ""]:
        """Of n messages of k floats out of dim, with their places."""
        return _place_bytes(n, k, dim, device) + self.float_bytes(n, k)

    def float_bytes(self, n: int, count: int) -> Float64[Tensor, ""]:
        """Of n messages of so many floats."""
        return torch.tensor(n * (HEADER_BYTES + count * self.bits / 8), dtype=torch.float64)

    def _floats(
        self, rows: Float32[Tensor, "n count"], clients: Int64[Tensor, " n"], round: int
    ) -> Float32[Tensor, "n count"]:
        return rows if self.is_exact else round_to_bfloat16(rows, self._key(round), clients)

    def _quantised(
        self, rows: Float32[Tensor, "n count"], clients: Int64[Tensor, " n"], round: int
    ) -> QuantisedRows:
        return quantise_rows(rows, self.bits, self._key(round), clients)

    def _quantised_bytes(self, sent: QuantisedRows) -> Float64[Tensor, ""]:
        sections = quantised_bytes(sent.histograms(), self.bits, sent.count)
        return sections.sum() + HEADER_BYTES * len(sections)

    def _key(self, round: int) -> int:
        return number(self.seed, "quantise", round)


def _place_bytes(n: int, k: int, dim: int, device: torch.device) -> Float64[Tensor, ""]:
    """Of the places of k numbers out of dim, in n messages."""
    return n * position_bytes(dim, torch.full((1,), k, device=device))[0]
