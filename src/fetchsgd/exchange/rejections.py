"""Why the server rejects a reply. Every reason is a counter of the run's metrics."""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "unreadable",  # Flower cannot make a message of it
    "header",  # not a message of this protocol
    "identity",  # a node that does not prove to be the client that it says it is
    "settings",  # another method, seed or model, or other initial weights
    "round",  # of another round, or of another client than the one that was asked
    "undecodable",  # its payload is not in the wire format
    "shape",  # another kind of payload, or of another size
    "seed",  # a sketch with another hash
    "not_finite",
    "norm",  # far longer than the replies of most clients
    "examples",  # an impossible number of examples
    "secure",  # no answer of secure aggregation, or a wrong one
]
REASONS: tuple[Reason, ...] = get_args(Reason)
MAX_SHOWN = 200  # characters


class RejectedError(Exception):
    """A reply that is not accepted: the reason, and a sentence for the log."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


def shown(told: object) -> str:
    """Text that a client may have written, for the log: short, and on one line."""
    return repr(str(told))[:MAX_SHOWN]
