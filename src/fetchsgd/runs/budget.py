"""`--budget`: settings that keep what one client sends in one round below that many bytes.

The rule, for FetchSGD. Rounding noise averages out over the cohort, collisions in the table do not:
so at equal bytes a wide table with few bits beats a narrow one with many. We take 2 bits and widen
the table until it has half as many cells as the model has weights; what is left of the budget buys
more bits. Methods that send whole vectors take the most bits that fit. Local top-k takes 8 bits and
as many coordinates as fit.

Costs are those of normally distributed numbers. Gradients have heavier tails, which take less once
they are entropy-coded, so what is sent stays below the budget.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.quantisers.bits import BITS_PER_NUMBER as CELL_BITS
from fetchsgd.runs.settings.parts import METHOD
from fetchsgd.wire.sizes import HEADER_BYTES

WIDEST = 0.5  # cells of a table per weight of the model
TABLES = 400  # bytes for the tables of the entropy coder
TOP_K_BITS = 8
COMPRESSION = "a compression is written with an x, as 100x"

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
    room = 8 * (bytes - HEADER_BYTES - TABLES)
    kind = message_kind(METHOD.find(method))
    if kind == "sketch":
        return _for_sketch(dim, room, rows, bytes)
    if kind == "chosen":
        return _for_top_k(dim, room, bytes)
    bits = _most_bits(room / dim)
    if bits is None:
        least = 4 * dim / (HEADER_BYTES + TABLES + dim * CELL_BITS[2] / 8)
        raise UserError(
            f"--budget of {bytes} bytes is too small: {method} sends all {dim} weights, at best "
            f"{least:.0f}x smaller; {' and '.join(_smaller_than_dense())} go further"
        )
    return {"upload": {"bits": bits}}


def message_kind(method: type) -> str:
    """What clients send: "dense" vectors, a "sketch" of `cols` columns, or `k` "chosen" numbers."""
    return str(getattr(method, "message_kind", "dense"))


def _smaller_than_dense() -> list[str]:
    return [name for name, kind in METHOD.known.items() if message_kind(kind) != "dense"]


def _for_sketch(dim: int, room: float, rows: int, bytes: int) -> dict[str, dict[str, Any]]:
    widest = max(int(WIDEST * dim), 1)
    cells = min(int(room / CELL_BITS[2]), widest)
    if cells < rows:
        raise UserError(f"--budget of {bytes} bytes does not hold a table; {COMPRESSION}")
    bits = _most_bits(room / cells) if cells == widest else 2
    return {"method": {"cols": cells // rows}, "upload": {"bits": bits or 2}}


def _for_top_k(dim: int, room: float, bytes: int) -> dict[str, dict[str, Any]]:
    low, high = 0, dim
    while low < high:
        middle = (low + high + 1) // 2
        if _top_k_bits(dim, middle) <= room:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise UserError(f"--budget of {bytes} bytes holds no coordinate; {COMPRESSION}")
    return {"method": {"k": low}, "upload": {"bits": TOP_K_BITS}}


def _top_k_bits(dim: int, k: int) -> float:
    """Which k of dim, within the coder's 3 %, and their values in whole runs."""
    share = k / dim
    each = -math.log2(share) - (1 - share) / share * math.log2(1 - share) if k < dim else 0.0
    values = 256 * math.ceil(k / 256)
    return 1.03 * k * each + 64 + values * (CELL_BITS[TOP_K_BITS] + 1)


def _most_bits(room_per_number: float) -> int | None:
    return max((bits for bits, cost in CELL_BITS.items() if cost <= room_per_number), default=None)
