"""FetchSGD: training over many clients whose links are slow.

To read the code, follow a gradient:

    tasks        the data and the model
    clients      the gradient, or the difference after local steps
    methods      what a client sends of it, and the server's step on the mean
    sketch       the Count Sketch that FetchSGD sends
    quantisers   numbers in few bits
    wire         messages as bytes
    secure       sums that hide what is summed
    server       Algorithm 1's loop, quantised weights, who holds which version, bytes
    runs         settings, run folders, checkpoints
    simulate     all of it on one machine        flower   over real machines
    theory       what the theorems ask for       diagnose whether a run meets it
    report       tables, figures and a page      cli      the command line

CONTRIBUTING.md lists every file.
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
    """Loaded on first use: a node that introduces itself, or makes keys, needs no torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
