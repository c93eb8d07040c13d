"""The five methods of section 5, one file each; base.py says what a method is."""

from fetchsgd.methods.base import Method, State
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered, Update
from fetchsgd.methods.fedavg import FedAvg
from fetchsgd.methods.fetchsgd import FetchSGD
from fetchsgd.methods.local_topk import LocalTopK
from fetchsgd.methods.messages import (
    ChosenMessage,
    DenseMessage,
    Memory,
    Message,
    Reply,
    SketchMessage,
    Sum,
    Upload,
)
from fetchsgd.methods.true_topk import TrueTopK
from fetchsgd.methods.uncompressed import Uncompressed

METHODS: dict[str, type] = {
    "fetchsgd": FetchSGD,
    "fedavg": FedAvg,
    "local_topk": LocalTopK,
    "true_topk": TrueTopK,
    "uncompressed": Uncompressed,
}

__all__ = [
    "IDENTITY",
    "METHODS",
    "ChosenMessage",
    "Deliver",
    "Delivered",
    "DenseMessage",
    "FedAvg",
    "FetchSGD",
    "LocalTopK",
    "Memory",
    "Message",
    "Method",
    "Reply",
    "SketchMessage",
    "State",
    "Sum",
    "TrueTopK",
    "Uncompressed",
    "Update",
    "Upload",
]
