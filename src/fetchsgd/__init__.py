"""FetchSGD: training over many clients whose links are slow.

To read the code, follow a gradient: `tasks` has the data, `client` computes it, `sketch` and
`methods` compress it and turn the sum into an update, `rounds` is the loop around that, `ledger`
counts the bytes, `simulate` runs it all on one machine, and `report` shows what came of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fetchsgd.sketch import CountSketch
    from fetchsgd.vector import SparseVector

__all__ = ["CountSketch", "SparseVector"]
__version__ = "0.1.0"

_HOMES = {"CountSketch": "fetchsgd.sketch", "SparseVector": "fetchsgd.vector"}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a node that says who it is, or makes keys, needs no torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
