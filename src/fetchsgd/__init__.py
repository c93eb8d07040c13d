"""FetchSGD: training over many clients whose links are slow.

To read the code, follow a gradient: `sketch` compresses it, `vector` is what comes back.
"""

from fetchsgd.sketch import CountSketch
from fetchsgd.vector import SparseVector

__all__ = ["CountSketch", "SparseVector"]
__version__ = "0.1.0"
