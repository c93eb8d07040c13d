"""`--budget`: settings that keep what one client sends in one round below that many bytes.

What the server may see decides what is chosen, for that decides what pays (docs/fewer-bytes.md):

    it sees each message        whole gradients, in levels as fine as fit: rounding noise averages
                                out over the cohort, collisions in a table do not. Without a method
                                or a preset this is what a budget takes.
    it sees sums (fetchsgd)     as many columns as fit, in numbers as the settings have them:
                                float32, or cells of `upload.sum = "modular"` with all that secure
                                aggregation sends beside them
    a sketch of few levels      where the settings say so: half the weights of the model as long as
                                a cell has a fair part of a bit, fewer columns only below that
    chosen coordinates          as many as fit with values of few bits

What the user has set stays as it is. Where nothing is left to choose, messages fit or are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.formatting import plural
from fetchsgd.methods.messages import ChunkedMessage, DenseMessage
from fetchsgd.quantisers import Bits, SharedStep, Step, TwoBits
from fetchsgd.quantisers.step import least_bytes
from fetchsgd.runs.fitting import (
    CELL_BITS,
    TABLES,
    WIDEST,
    cells_of_levels,
    largest,
    level_options,
    place_bytes,
    sum_bytes,
    values_bytes,
)
from fetchsgd.runs.settings import Config
from fetchsgd.runs.settings.parts import MERGE
from fetchsgd.runs.setup import does_not_add_up, make_method
from fetchsgd.runs.toml_files import Settings
from fetchsgd.sums import Modular
from fetchsgd.sums.modular import BITS
from fetchsgd.wire.sizes import HEADER_BYTES

CHOSEN = Step(tau=0.25)  # for values of chosen coordinates
OF_CHOSEN = {"quantiser": "step", "tau": CHOSEN.tau}
# What a budget chooses of a message of this kind, so that it need not be given before.
SIZES = {"sketch": "cols", "chosen": "k", "chunked": "per_chunk"}

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


def message_kind(method: type) -> str | None:
    """What clients send: a "sketch" of `cols` columns, `k` "chosen" numbers, or `per_chunk` of each
    chunk, "chunked"; "dense" vectors, or None, where its message says.
    """
    kind = getattr(method, "message_kind", None)
    return None if kind is None else str(kind)


def choose(config: Config, own: Settings, dim: int, bytes: int) -> Settings:
    """Settings with which a client sends at most so many bytes; none if it does so anyway.

    own: what the user has set. It is never among what is chosen.
    """
    asked = _Asked(config, own, dim, bytes)
    kind = message_kind(config.method_class)
    if isinstance(config.quantiser, Modular):
        return _for_sums(asked, kind, config.quantiser)
    if kind == "sketch":
        return _for_sketch(asked)
    if kind == "chosen":
        return _for_top_k(asked)
    if kind == "chunked":
        return _for_chunks(asked)
    return _for_dense(asked) if kind == "dense" or asked.is_dense() else _as_it_is(asked)


@dataclass(frozen=True)
class _Asked:
    """What there is to choose for."""

    config: Config
    own: Settings
    dim: int
    bytes: int

    def has(self, section: str, *keys: str) -> bool:
        """Whether the user has set one of these."""
        return any(key in self.own.get(section, {}) for key in keys)

    def leave_out(self, section: str, key: str) -> None:
        """Refuse what a budget has to choose."""
        if self.has(section, key):
            raise UserError(f"--budget chooses {section}.{key}: leave one of the two out")

    @property
    def may_round(self) -> bool:
        """Whether it is for the budget to say how numbers are rounded."""
        return (
            isinstance(self.config.quantiser, Bits)
            and not self.has("upload", "quantiser", "bits")
            and not self.config.privacy.is_on
        )

    @property
    def rows(self) -> int:
        return int(self.config.method_options.get("rows", 1))

    @property
    def cohorts(self) -> Collection[int]:
        """How many clients may be in one sum."""
        train, rule = self.config.train, self.config.parts[MERGE.setting].made()
        clients, most = self.config.task.train.num_clients, train.clients_per_round
        if train.sampling == "poisson":
            most = min(clients, most + math.ceil(6 * math.sqrt(most)))
            sizes: Collection[int] = range(1, most + 1)
        else:
            sizes = {most, clients % most or most} if train.sampling == "epoch" else {most}
        groups = 1 if getattr(rule, "is_plain", False) else rule.groups
        return {part for size in sizes for part in (size // groups, -(-size // groups)) if part}

    def is_dense(self) -> bool:
        return isinstance(make_method(self.config, self.dim).message, DenseMessage)

    def too_small(self, least: float, why: str) -> UserError:
        """For a budget that no message meets."""
        ratio = 4 * self.dim / least
        hint = "; a compression is written with an x, as 100x" if self.bytes < HEADER_BYTES else ""
        takes = f"{math.ceil(least):,} bytes" + (f" ({ratio:.3g}x)" if ratio > 1 else "")
        return UserError(
            f"--budget of {plural(self.bytes, 'byte')} cannot be met: {why}, and that takes "
            f"{takes} at least{hint}"
        )


def _for_sums(asked: _Asked, kind: str | None, sums: Modular) -> Settings:
    """Columns, or the bits of a cell where the number of cells is given."""
    if kind in ("chosen", "chunked"):
        raise does_not_add_up(asked.config.method)
    cohorts = asked.cohorts
    beside = "with its keys and shares " if sums.secure else ""
    if kind == "sketch" and not asked.has("method", "cols"):
        why = f"a table has a column of {sums.sum_bits} bits {beside}in each row"
        return _widest(asked, lambda cells: sum_bytes(sums, cells, cohorts), why)
    if kind == "sketch":
        numbers = asked.rows * int(asked.config.method_options["cols"])
    else:
        numbers = make_method(asked.config, asked.dim).message.numbers
    given = asked.has("upload", "sum_bits")

    def size(bits: int) -> float:
        return sum_bytes(replace(sums, sum_bits=bits), numbers, cohorts)

    least = size(sums.sum_bits if given else BITS[0])
    if least > asked.bytes:
        bits = sums.sum_bits if given else BITS[0]
        raise asked.too_small(least, f"a sum has {numbers:,} cells of {bits} bits {beside}".strip())
    if given:
        return {}
    return {"upload": {"sum_bits": largest(size, asked.bytes, most=BITS[1])}}


def _for_sketch(asked: _Asked) -> Settings:
    """Columns; and levels only where the settings round to a step."""
    quantiser = asked.config.quantiser
    if not isinstance(quantiser, Step | SharedStep):
        asked.leave_out("method", "cols")
        why = f"a table has a column in each of {plural(asked.rows, 'row')}"
        return _widest(asked, lambda cells: HEADER_BYTES + quantiser.most_bytes(cells), why)
    if asked.has("method", "cols"):
        cols, chosen = int(asked.config.method_options["cols"]), {}
    else:
        fair = cells_of_levels(asked.bytes)
        cols = min(fair, max(int(WIDEST * asked.dim), 1)) // asked.rows
        chosen = {"method": {"cols": cols}}
    if cols < 1:
        least = HEADER_BYTES + TABLES + asked.rows * CELL_BITS / 8
        raise asked.too_small(least, f"a table has a column in each of {plural(asked.rows, 'row')}")
    why = f"a table has {plural(asked.rows * cols, 'cell')}"
    return {**chosen, "upload": _levels(asked, quantiser, asked.rows * cols, why)}


def _widest(asked: _Asked, size: Callable[[int], float], why: str) -> Settings:
    """The widest table of which a message fits, with no more cells than the model has weights."""
    rows = asked.rows
    cols = largest(lambda cols: size(rows * cols), asked.bytes, most=max(asked.dim // rows, 1))
    if cols == 0:
        raise asked.too_small(size(rows), why)
    return {"method": {"cols": cols}}


def _levels(asked: _Asked, quantiser: Step | SharedStep, count: int, why: str) -> dict[str, Any]:
    """Levels of so many numbers, but for what the user has said of them."""
    if asked.own.get("upload", {}).get("bytes"):
        asked.leave_out("upload", "bytes")
    least = HEADER_BYTES + least_bytes(count)
    if asked.bytes < least:
        raise asked.too_small(least, why)
    options = level_options(quantiser, count, asked.bytes)
    return {k: v for k, v in options.items() if k == "bytes" or not asked.has("upload", k)}


def _for_dense(asked: _Asked) -> Settings:
    quantiser = asked.config.quantiser
    why = f"{asked.config.method} sends all {asked.dim:,} weights"
    if isinstance(quantiser, Step | SharedStep):
        return {"upload": _levels(asked, quantiser, asked.dim, why)}
    if not asked.may_round:
        return _as_it_is(asked)
    if asked.bytes >= HEADER_BYTES + 4 * asked.dim:
        return {"upload": {"bits": 32}}
    return {"upload": {"quantiser": "step", **_levels(asked, Step(), asked.dim, why)}}


def _as_it_is(asked: _Asked) -> Settings:
    """Nothing is left to choose: messages fit, or they do not."""
    message = make_method(asked.config, asked.dim).message
    least = message.most_bytes(asked.config.quantiser)
    if least <= asked.bytes:
        return {}
    why = f"{asked.config.method} sends {message.numbers:,} numbers"
    for key in ("bits", "quantiser"):
        if asked.has("upload", key):
            why += f" by upload.{key} = {asked.own['upload'][key]!r}"
    if asked.config.privacy.is_on:
        why += " as they are, which privacy.mode = 'central' wants"
    raise asked.too_small(least, why)


def _for_top_k(asked: _Asked) -> Settings:
    """Chosen coordinates."""
    asked.leave_out("method", "k")
    upload = OF_CHOSEN if asked.may_round else {}
    quantiser = CHOSEN if asked.may_round else asked.config.quantiser

    def size(k: int) -> float:
        return HEADER_BYTES + values_bytes(quantiser, k) + place_bytes(asked.dim, k)

    k = largest(size, asked.bytes, most=asked.dim)
    if k == 0:
        raise asked.too_small(size(1), "a client sends one coordinate or more")
    return {"method": {"k": k}, **({"upload": upload} if upload else {})}


def _for_chunks(asked: _Asked) -> Settings:
    """Chosen coordinates of each chunk, in two bits where that is right."""
    asked.leave_out("method", "per_chunk")
    message = make_method(asked.config, asked.dim).message
    assert isinstance(message, ChunkedMessage)
    upload: dict[str, Any] = {}
    quantiser = asked.config.quantiser
    if asked.may_round and message.keeps_rounding:
        upload, quantiser = {"quantiser": "two_bits"}, TwoBits()
    elif asked.may_round:
        upload, quantiser = OF_CHOSEN, CHOSEN

    def size(per_chunk: int) -> float:
        count = replace(message, per_chunk=per_chunk).numbers
        return HEADER_BYTES + values_bytes(quantiser, count) + place_bytes(asked.dim, count)

    per_chunk = largest(size, asked.bytes, most=asked.config.method_options["chunk"])
    if per_chunk == 0:
        raise asked.too_small(size(1), "a client sends one coordinate of each chunk or more")
    return {"method": {"per_chunk": per_chunk}, **({"upload": upload} if upload else {})}
