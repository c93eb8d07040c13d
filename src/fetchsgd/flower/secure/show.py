"""What the server sees of single clients, for the log (`federation.show`): noise, and a sum."""

from __future__ import annotations

import logging

import numpy as np
from jaxtyping import UInt32
from numpy import ndarray

from fetchsgd.secure import Sum, Terms, planes
from fetchsgd.secure.frames import HEADER_BYTES
from fetchsgd.secure.kinds import SIGNATURE_BYTES

log = logging.getLogger("flwr.fetchsgd")
SHOWN = 12  # cells


def cells_of(message: bytes, terms: Terms) -> UInt32[ndarray, " cells"]:
    """The cells of a client's masked message."""
    start = HEADER_BYTES + SIGNATURE_BYTES + 8 * terms.totals
    words = np.frombuffer(message[start:-SIGNATURE_BYTES], "<u8").astype(np.uint64)
    return planes.unpack(words, terms.cells, terms.bits)


class Show:
    """Tells of the first few clients of each attempt."""

    def __init__(self, terms: Terms, most: int) -> None:
        self.terms, self.most, self.shown = terms, most, 0

    def masked(self, client: int, message: bytes) -> None:
        if self.shown >= self.most:
            return
        self.shown += 1
        cells = cells_of(message, self.terms)
        uniform = ((1 << 2 * self.terms.bits) - 1) / 12
        log.info(
            "what the server sees of client %d: %s ... mean %.1f and deviation %.1f; of random "
            "numbers %.1f and %.1f",
            client, _first(cells), cells.mean(), cells.std(),
            ((1 << self.terms.bits) - 1) / 2, uniform**0.5,
        )  # fmt: skip

    def sum(self, found: Sum) -> None:
        if not self.most:
            return
        half = 1 << self.terms.bits - 1
        levels = (found.cells.astype(np.int64) + half) % (2 * half) - half
        log.info(
            "what it sees of the sum of %d clients, in levels: %s ... mean %.1f and deviation %.1f",
            len(found.clients), _first(levels), levels.mean(), levels.std(),
        )  # fmt: skip


def _first(cells: np.ndarray) -> str:  # type: ignore[type-arg]
    return " ".join(str(cell) for cell in cells[:SHOWN].tolist())
