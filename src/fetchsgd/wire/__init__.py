"""The wire format: what clients and server send, as bytes (docs/wire.md)."""

from fetchsgd.wire.codec import decode, encode, num_bytes
from fetchsgd.wire.errors import MismatchError, WireError
from fetchsgd.wire.header import Header
from fetchsgd.wire.payloads import DenseVector, Payload, SketchTable, SparseUpdate, WholeModel
from fetchsgd.wire.reader import Reader
from fetchsgd.wire.sparse_integers import SparseIntegers
from fetchsgd.wire.values import Coding, Floats, Integers, Values, register_section

__all__ = [
    "Coding",
    "DenseVector",
    "Floats",
    "Header",
    "Integers",
    "MismatchError",
    "Payload",
    "Reader",
    "SketchTable",
    "SparseIntegers",
    "SparseUpdate",
    "Values",
    "WholeModel",
    "WireError",
    "decode",
    "encode",
    "num_bytes",
    "register_section",
]
