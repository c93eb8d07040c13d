"""Which values weights may take, so that changes take few bits on the way down; one file each.

    float32             any; a client fetches the new values of what changed
    float16, bfloat16   a weight that is touched is rounded to 16 bits, and fetched in 16 bits
    steps               every weight is w0 + n step, n an integer; a client fetches sums of steps

A grid also says what the server sends a client that holds an older version, and how many bytes
that takes. Clients make w0 from the shared seed, and end up with the server's weights to the bit.
"""

from fetchsgd.server.grids.base import Downloads, Grid, GridWeights, HeldVersion
from fetchsgd.server.grids.floats import BFloat16Grid, Float16Grid, Float32Grid, FloatGrid
from fetchsgd.server.grids.steps import StepGrid

GRIDS: dict[str, type] = {
    "float32": Float32Grid,
    "float16": Float16Grid,
    "bfloat16": BFloat16Grid,
    "steps": StepGrid,
}

__all__ = [
    "GRIDS",
    "BFloat16Grid",
    "Downloads",
    "Float16Grid",
    "Float32Grid",
    "FloatGrid",
    "Grid",
    "GridWeights",
    "HeldVersion",
    "StepGrid",
]
