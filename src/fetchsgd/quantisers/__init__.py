"""How a client's numbers become few bits; base.py says what a quantiser is."""

from fetchsgd.quantisers.base import Quantiser, RoundedRows
from fetchsgd.quantisers.bits import Bits
from fetchsgd.quantisers.eden import Eden
from fetchsgd.quantisers.shared_step import SharedStep
from fetchsgd.quantisers.step import Step
from fetchsgd.quantisers.two_bits import TwoBits

# By the names that settings use.
QUANTISERS: dict[str, type[Quantiser]] = {
    "bits": Bits,
    "step": Step,
    "shared_step": SharedStep,
    "eden": Eden,
    "two_bits": TwoBits,
}

__all__ = [
    "QUANTISERS",
    "Bits",
    "Eden",
    "Quantiser",
    "RoundedRows",
    "SharedStep",
    "Step",
    "TwoBits",
]
