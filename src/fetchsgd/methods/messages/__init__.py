"""What clients send (Algorithm 1, lines 8 to 10). base.py says what a message is."""

from fetchsgd.methods.messages.base import Dice, Memory, Message, Reply, Sum, Vectors
from fetchsgd.methods.messages.chosen import ChosenMessage
from fetchsgd.methods.messages.linear import DenseMessage, LinearMessage, SketchMessage, flatten

__all__ = [
    "ChosenMessage",
    "DenseMessage",
    "Dice",
    "LinearMessage",
    "Memory",
    "Message",
    "Reply",
    "SketchMessage",
    "Sum",
    "Vectors",
    "flatten",
]
