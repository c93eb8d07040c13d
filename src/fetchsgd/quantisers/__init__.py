"""How a client's numbers become few bits; base.py says what a quantiser is."""

from fetchsgd.quantisers.base import Quantiser, RoundedRows
from fetchsgd.quantisers.bits import Bits

# By the names that settings use.
QUANTISERS: dict[str, type[Quantiser]] = {"bits": Bits}

__all__ = ["QUANTISERS", "Bits", "Quantiser", "RoundedRows"]
