"""What clients send (Algorithm 1, lines 8 to 10). base.py says what a message is."""

from fetchsgd.methods.messages.base import (
    Memory,
    Message,
    Reply,
    Sum,
    Upload,
    Vectors,
    check_round_and_values,
    refuse_unless,
    round_one,
)
from fetchsgd.methods.messages.chosen import ChosenMessage
from fetchsgd.methods.messages.chunked import ChunkedMessage
from fetchsgd.methods.messages.linear import (
    DenseMessage,
    LinearMessage,
    Rounded,
    SketchMessage,
    flatten,
)

__all__ = [
    "ChosenMessage",
    "ChunkedMessage",
    "DenseMessage",
    "LinearMessage",
    "Memory",
    "Message",
    "Reply",
    "Rounded",
    "SketchMessage",
    "Sum",
    "Upload",
    "Vectors",
    "check_round_and_values",
    "flatten",
    "refuse_unless",
    "round_one",
]
