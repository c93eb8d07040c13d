"""The wire format: what clients and server send, as bytes (docs/wire.md)."""

from fetchsgd.quantisers.levels import (
    Quantised,
    QuantisedRows,
    Rounding,
    quantise,
    quantise_rows,
    round_to_bfloat16,
)
from fetchsgd.wire.codec import decode, encode, num_bytes
from fetchsgd.wire.errors import MismatchError, WireError
from fetchsgd.wire.header import Header
from fetchsgd.wire.payloads import (
    DenseVector,
    Floats,
    Integers,
    Payload,
    SketchTable,
    SparseUpdate,
    Values,
    WholeModel,
)

__all__ = [
    "DenseVector",
    "Floats",
    "Integers",
    "Payload",
    "Quantised",
    "QuantisedRows",
    "Rounding",
    "SketchTable",
    "SparseUpdate",
    "Values",
    "WholeModel",
    "WireError",
    "decode",
    "encode",
    "num_bytes",
    "quantise",
    "quantise_rows",
    "round_to_bfloat16",
]
