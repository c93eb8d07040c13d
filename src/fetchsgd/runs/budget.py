"""`--budget`: settings that keep what one client sends in one round below that many bytes.

Below 32 bits a number, numbers go as multiples of one step per message (quantisers/step.py), and
the budget becomes its cap: each client takes the smallest step with which its own message fits. So
the budget holds whatever the numbers are like, and little of it is left over.

The rule for FetchSGD: rounding noise averages out over the cohort, collisions in the table do not.
So the table is as wide as half the weights of the model while a cell has a fair part of a bit, and
narrower only below that. Local top-k takes values of few bits and as many coordinates as fit; its
messages have no cap, but costs are those of the worst values there are.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.formatting import plural
from fetchsgd.quantisers.step import least_bytes, most_entropy
from fetchsgd.runs.settings.parts import METHOD
from fetchsgd.wire.sizes import HEADER_BYTES

WIDEST = 0.5  # cells of a table per weight of the model
CELL_BITS = 0.25  # the least that a cell of a table is worth, while the table can be narrower
TABLES = 400  # bytes for the tables of the entropy coder
TOP_K_TAU = 0.25  # the step of a local top-k's values over their rms
FINEST = 2.0**-6  # of all taus: a squared error of 4e-5, below which nothing matters

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_budget(text: str, dim: int) -> int:
    """Bytes per client and round, from `100x` (less than 4 bytes a weight) or `250kB`."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    number = float(found[1]) if found else 0.0
    if not found or found[2] not in (*UNITS, "x") or not 0 < number < math.inf:
        raise UserError(
            f"--budget must be a compression such as 100x, or bytes such as 250kB, got {text!r}"
        )
    return int(4 * dim / number) if found[2] == "x" else int(number * UNITS[found[2]])


def choose(method: str, dim: int, bytes: int, rows: int = 1) -> dict[str, dict[str, Any]]:
    """Settings with which a client of this method sends at most this many bytes."""
    kind = message_kind(METHOD.find(method))
    if kind == "sketch":
        return _for_sketch(dim, bytes, rows)
    if kind == "chosen":
        return _for_top_k(dim, bytes)
    least = HEADER_BYTES + least_bytes(dim)
    if bytes < least:
        raise _too_small(bytes, least, dim, f"{method} sends all {dim:,} weights")
    return {"upload": _upload(dim, bytes)}


def _too_small(bytes: int, least: float, dim: int, why: str) -> UserError:
    """For a budget that no message meets."""
    ratio = 4 * dim / least
    hint = "; a compression is written with an x, as 100x" if bytes < HEADER_BYTES else ""
    best = f"{least:,.0f} bytes ({ratio:.3g}x)" if ratio > 1 else f"{least:,.0f} bytes"
    return UserError(
        f"--budget of {plural(bytes, 'byte')} cannot be met: {why}, and that takes {best} at "
        f"least{hint}"
    )


def message_kind(method: type) -> str:
    """What clients send: "dense" vectors, a "sketch" of `cols` columns, or `k` "chosen" numbers."""
    return str(getattr(method, "message_kind", "dense"))


def _upload(count: int, bytes: int) -> dict[str, Any]:
    """How this many numbers fit."""
    if bytes >= HEADER_BYTES + 4 * count:
        return {"bits": 32}
    return {"quantiser": "step", "tau": _finest(8 * (bytes - HEADER_BYTES) / count), "bytes": bytes}


def _finest(bits: float) -> float:
    """From which tau on a client looks for the step that fits: a power of two.

    An eighth of what the worst numbers would need; gradients, with their heavy tails, need less.
    """
    tau = 2.0**12
    while tau > 8 * FINEST and most_entropy(1 / tau) < bits:
        tau /= 2
    return tau / 8


def _for_sketch(dim: int, bytes: int, rows: int) -> dict[str, dict[str, Any]]:
    room = 8 * (bytes - HEADER_BYTES - TABLES)
    cells = min(int(room / CELL_BITS), max(int(WIDEST * dim), 1))
    if cells < rows:
        least = HEADER_BYTES + TABLES + rows * CELL_BITS / 8
        raise _too_small(
            bytes, least, dim, f"a table has a column in each of {plural(rows, 'row')}"
        )
    cols = cells // rows
    return {"method": {"cols": cols}, "upload": _upload(rows * cols, bytes)}


def _for_top_k(dim: int, bytes: int) -> dict[str, dict[str, Any]]:
    room = 8 * (bytes - HEADER_BYTES - TABLES)
    low, high = 0, dim
    while low < high:
        middle = (low + high + 1) // 2
        if _top_k_bits(dim, middle) <= room:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        least = HEADER_BYTES + TABLES + _top_k_bits(dim, 1) / 8
        raise _too_small(bytes, least, dim, "a client sends one coordinate or more")
    return {"method": {"k": low}, "upload": {"quantiser": "step", "tau": TOP_K_TAU}}


def _top_k_bits(dim: int, k: int) -> float:
    """Which k of dim, and their values, within the coder's 3 %."""
    share = k / dim
    each = -math.log2(share) - (1 - share) / share * math.log2(1 - share) if k < dim else 0.0
    return 1.03 * k * (each + most_entropy(1 / TOP_K_TAU)) + 64
