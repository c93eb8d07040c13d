"""FetchSGD: training over many clients whose links are slow.

To read the code, follow a gradient: `tasks` has the data, `client` computes it, `sketch` and
`methods` compress it and turn the sum into an update, `rounds` is the loop around that, `ledger`
counts the bytes, `simulate` runs it all on one machine, and `report` shows what came of it.
"""

from fetchsgd.sketch import CountSketch
from fetchsgd.vector import SparseVector

__all__ = ["CountSketch", "SparseVector"]
__version__ = "0.1.0"
