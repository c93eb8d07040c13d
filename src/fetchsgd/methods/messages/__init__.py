"""What clients send (Algorithm 1, lines 8 to 10). base.py says what a message is."""

from fetchsgd.methods.messages.base import Memory, Message, Reply, Sum, Upload, Vectors
from fetchsgd.methods.messages.chosen import ChosenMessage
from fetchsgd.methods.messages.linear import DenseMessage, LinearMessage, SketchMessage, flatten

__all__ = [
    "ChosenMessage",
    "DenseMessage",
    "LinearMessage",
    "Memory",
    "Message",
    "Reply",
    "SketchMessage",
    "Sum",
    "Upload",
    "Vectors",
    "flatten",
]
