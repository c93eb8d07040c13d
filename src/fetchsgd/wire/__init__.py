"""The wire format: what clients and server send, as bytes (docs/wire.md)."""

from fetchsgd.wire.codec import decode, encode, num_bytes
from fetchsgd.wire.errors import WireError
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
from fetchsgd.wire.quantised import Quantised

__all__ = [
    "DenseVector",
    "Floats",
    "Integers",
    "Payload",
    "Quantised",
    "SketchTable",
    "SparseUpdate",
    "Values",
    "WholeModel",
    "WireError",
    "decode",
    "encode",
    "num_bytes",
]
