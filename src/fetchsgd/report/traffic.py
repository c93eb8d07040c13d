"""Traffic: what a run sent, and how much less that is than uncompressed SGD sends.

Bytes are counted in two ways. On the wire is what is really sent: numbers in their bits, positions,
scales and headers, after entropy coding. The paper counts 4 bytes for every number that is not
zero, and nothing for positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fetchsgd.errors import UserError
from fetchsgd.runs.files import Fields

KINDS = ("upload", "download", "overall")
WIRE, PAPER = COUNTS = ("wire", "paper")
COUNTED = {WIRE: "on the wire", PAPER: "as the paper counts"}

_PREFIX = {WIRE: "wire_", PAPER: ""}  # of the fields of a count in result.json and metrics.jsonl


@dataclass(frozen=True)
class Traffic:
    """What a run sent by one of the counts; compression is known once the run has ended."""

    upload_bytes: int
    download_bytes: int
    compression: Mapping[str, float | None]  # keyed by KINDS

    @property
    def bytes_sent(self) -> int:
        return self.upload_bytes + self.download_bytes


NOTHING_SENT = {PAPER: Traffic(0, 0, dict.fromkeys(KINDS))}


def final_traffic(result: Fields) -> dict[str, Traffic]:
    """The traffic of a run that has ended, by count."""
    return {
        count: Traffic(
            result.whole(f"{_PREFIX[count]}upload_bytes"),
            result.whole(f"{_PREFIX[count]}download_bytes"),
            {kind: _compression(result, f"{_PREFIX[count]}{kind}_compression") for kind in KINDS},
        )
        for count in _counts_in(result)
    }


def traffic_so_far(line: Fields) -> dict[str, Traffic]:
    """The traffic up to a line of the metrics, by count."""
    return {
        count: Traffic(
            line.whole(f"{_PREFIX[count]}upload_bytes"),
            line.whole(f"{_PREFIX[count]}download_bytes"),
            # Compression is relative to a number of rounds that is known only at the end.
            dict.fromkeys(KINDS),
        )
        for count in _counts_in(line)
    }


def figure_name(kind: str, count: str) -> str:
    """What the names of a figure's files end in; figures on the wire are the main ones."""
    return kind if count == WIRE else f"{kind}-paper"


def _counts_in(fields: Fields) -> list[str]:
    """Runs of older versions were counted only as in the paper; half a count is a mistake."""
    on_the_wire = any(name.startswith(_PREFIX[WIRE]) for name in fields.values)
    return [WIRE, PAPER] if on_the_wire else [PAPER]


def _compression(result: Fields, name: str) -> float | None:
    value = result.number_or_null(name)
    if value is not None and value <= 0:
        raise UserError(f"{result.where}: the field '{name}' must be positive, got {value}")
    return value
