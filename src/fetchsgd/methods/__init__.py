"""The five methods of section 5, a file each."""

from fetchsgd.methods.base import LocalMethod, Memory, Method, State
from fetchsgd.methods.fedavg import FedAvg
from fetchsgd.methods.fetchsgd import FetchSGD
from fetchsgd.methods.local_topk import LocalTopK
from fetchsgd.methods.true_topk import TrueTopK
from fetchsgd.methods.uncompressed import Uncompressed
from fetchsgd.server.grids import Update

METHODS: dict[str, type] = {
    "fetchsgd": FetchSGD,
    "fedavg": FedAvg,
    "local_topk": LocalTopK,
    "true_topk": TrueTopK,
    "uncompressed": Uncompressed,
}

__all__ = [
    "METHODS",
    "FedAvg",
    "FetchSGD",
    "LocalMethod",
    "LocalTopK",
    "Memory",
    "Method",
    "State",
    "TrueTopK",
    "Uncompressed",
    "Update",
]
