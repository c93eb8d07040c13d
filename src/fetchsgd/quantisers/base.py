"""What a quantiser is: how a client's numbers become few bits (Algorithm 1, line 8).

A quantiser is one file, inside the package or outside. It holds a frozen dataclass whose fields are
its options, and what its `round_rows` returns. Numbers that are neither floats nor integers also
need a section of a message: a class that satisfies `fetchsgd.wire.Values`, and a function that
reads it, registered by `fetchsgd.wire.register_section`.
"""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.wire import Values


class RoundedRows(Protocol):
    """What the clients of a cohort send, side by side on one device."""

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        """The sum of weights[i] * row i, as the server reads them."""
        ...

    def dequantise(self) -> Float32[Tensor, "n count"]:
        """All rows as the server reads them."""
        ...

    def section_bytes(self) -> Float64[Tensor, " n"]:
        """The size of each client's section, predicted without encoding or waiting for a device."""
        ...

    def row(self, index: int) -> Values:
        """One client's values, to be put into a payload."""
        ...


class Quantiser(Protocol):
    """How numbers are rounded, and what they then take on the wire."""

    @property
    def exact(self) -> bool:
        """Whether numbers go as they are, so that sums may be taken before or after."""
        ...

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> RoundedRows:
        """Row i as client clients[i] sends it.

        Random numbers depend on key and client alone, so that a real client, which calls
        `round_rows(row[None], key, clients=[me]).row(0)`, rounds like a simulated one.
        """
        ...

    def fixed_bytes(self, count: int) -> int | None:
        """The size of a section of `count` numbers if it does not depend on them, else None."""
        ...

    def reads(self, format: int) -> bool:
        """Whether this quantiser writes sections of this format."""
        ...

    def most_bytes(self, count: int) -> int:
        """No honest section of `count` numbers is longer."""
        ...
