"""Several processes that train one model together, as torchrun starts them.

Each does the work of some of a round's clients, and all have the sum of what clients send. The
server's part of a round is done by every process, on equal numbers; so nothing is sent back, and
all hold the same weights. Process 0 alone writes files.

    group.py        who they are, and what they do together
    joining.py      how a process finds the others
    near.py         how those of one machine sum up
"""

from fetchsgd.ranks.group import ALONE, LostError, Ranks
from fetchsgd.ranks.joining import joined, started_together

__all__ = ["ALONE", "LostError", "Ranks", "joined", "started_together"]
