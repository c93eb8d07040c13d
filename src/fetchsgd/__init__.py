"""FetchSGD: training over many clients whose links are slow.

Two ways in. `simulate` trains over simulated clients; `Plan`, `Server` and `client_update` are for
a loop of your own, whose clients and server exchange bytes:

    import fetchsgd as fs

    result = fs.simulate("digits", "fetchsgd", epochs=4, cols=4000)

    plan = fs.Plan(make_model, {"name": "fetchsgd", "k": 500, "cols": 8000}, rounds=100)
    server = fs.Server(plan)
    reply, state = fs.client_update(server.request(0), plan, loss, data, state)

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
    exchange     a server and its clients, which exchange bytes
    simulation   all of it on one machine        flower   over real machines
    theory       what the theorems ask for       diagnose whether a run meets it
    report       tables, figures and a page      cli      the command line

CONTRIBUTING.md lists every file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fetchsgd.clients.local_work import LocalWork
    from fetchsgd.errors import DivergedError, UserError
    from fetchsgd.exchange.client_state import ClientState
    from fetchsgd.exchange.client_update import client_update
    from fetchsgd.exchange.plan import Plan
    from fetchsgd.exchange.rejections import RejectedError
    from fetchsgd.exchange.server import Server
    from fetchsgd.methods import FedAvg, FetchSGD, LocalTopK, TrueTopK, Uncompressed
    from fetchsgd.quantisers import Bits, Eden, SharedStep, Step
    from fetchsgd.runs.recorder import Progress
    from fetchsgd.runs.trained_model import load_model
    from fetchsgd.server.grids import BFloat16Grid, Float16Grid, Float32Grid, StepGrid
    from fetchsgd.server.sampling import Sampler
    from fetchsgd.server.schedule import Schedule
    from fetchsgd.simulation import Result, simulate
    from fetchsgd.sketch import CountSketch
    from fetchsgd.tasks.base import ClientData, HeldOut, Task
    from fetchsgd.vector import SparseVector
    from fetchsgd.wire import (
        DenseVector,
        Floats,
        Integers,
        SketchTable,
        SparseUpdate,
        WholeModel,
        WireError,
        decode,
        encode,
        num_bytes,
    )

# Where each public name lives. The modules are loaded when a name is first used: a node that
# introduces itself, or makes keys, needs no torch, and few users need every extra.
_HOMES = {
    "fetchsgd.clients.local_work": ("LocalWork",),
    "fetchsgd.errors": ("DivergedError", "UserError"),
    "fetchsgd.exchange.client_state": ("ClientState",),
    "fetchsgd.exchange.client_update": ("client_update",),
    "fetchsgd.exchange.plan": ("Plan",),
    "fetchsgd.exchange.rejections": ("RejectedError",),
    "fetchsgd.exchange.server": ("Server",),
    "fetchsgd.methods": ("FedAvg", "FetchSGD", "LocalTopK", "TrueTopK", "Uncompressed"),
    "fetchsgd.quantisers": ("Bits", "Eden", "SharedStep", "Step"),
    "fetchsgd.runs.recorder": ("Progress",),
    "fetchsgd.runs.trained_model": ("load_model",),
    "fetchsgd.server.grids": ("BFloat16Grid", "Float16Grid", "Float32Grid", "StepGrid"),
    "fetchsgd.server.sampling": ("Sampler",),
    "fetchsgd.server.schedule": ("Schedule",),
    "fetchsgd.simulation": ("Result", "simulate"),
    "fetchsgd.sketch": ("CountSketch",),
    "fetchsgd.tasks.base": ("ClientData", "HeldOut", "Task"),
    "fetchsgd.vector": ("SparseVector",),
    "fetchsgd.wire": (
        "DenseVector",
        "Floats",
        "Integers",
        "SketchTable",
        "SparseUpdate",
        "WholeModel",
        "WireError",
        "decode",
        "encode",
        "num_bytes",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BFloat16Grid",
    "Bits",
    "ClientData",
    "ClientState",
    "CountSketch",
    "DenseVector",
    "DivergedError",
    "Eden",
    "FedAvg",
    "FetchSGD",
    "Float16Grid",
    "Float32Grid",
    "Floats",
    "HeldOut",
    "Integers",
    "LocalTopK",
    "LocalWork",
    "Plan",
    "Progress",
    "RejectedError",
    "Result",
    "Sampler",
    "Schedule",
    "Server",
    "SharedStep",
    "SketchTable",
    "SparseUpdate",
    "SparseVector",
    "Step",
    "StepGrid",
    "Task",
    "TrueTopK",
    "Uncompressed",
    "UserError",
    "WholeModel",
    "WireError",
    "client_update",
    "decode",
    "encode",
    "load_model",
    "num_bytes",
    "simulate",
]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """A public name, on first use."""
    if name in _HOME_OF:
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
