"""The five methods of section 5 and one more, a file each; base.py says what a method is."""

from fetchsgd.methods.base import Method, State
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered, Update
from fetchsgd.methods.fedavg import FedAvg
from fetchsgd.methods.fetchsgd import FetchSGD
from fetchsgd.methods.local_topk import LocalTopK
from fetchsgd.methods.messages import (
    ChosenMessage,
    ChunkedMessage,
    DenseMessage,
    Memory,
    Message,
    Reply,
    SketchMessage,
    Sum,
    Upload,
)
from fetchsgd.methods.sparse_loco import SparseLoCo
from fetchsgd.methods.true_topk import TrueTopK
from fetchsgd.methods.uncompressed import Uncompressed

METHODS: dict[str, type] = {
    "fetchsgd": FetchSGD,
    "fedavg": FedAvg,
    "local_topk": LocalTopK,
    "sparse_loco": SparseLoCo,
    "true_topk": TrueTopK,
    "uncompressed": Uncompressed,
}

__all__ = [
    "IDENTITY",
    "METHODS",
    "ChosenMessage",
    "ChunkedMessage",
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
    "SparseLoCo",
    "State",
    "Sum",
    "TrueTopK",
    "Uncompressed",
    "Update",
    "Upload",
]
