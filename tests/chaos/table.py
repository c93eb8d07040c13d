"""What campaigns have found so far, as the tables of docs/reliability.md.

python tests/chaos/table.py benchmarks/results/chaos.jsonl --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
GROWN = "memory_growth_in_a_round_mb"  # lines of earlier versions have none
FLOWERS = {"node": "SuperNodes", "serverapp": "ServerApps", "superlink": "SuperLinks"}
FLOWERS |= {"clientapp": "ClientApps"}


def summed(lines: list[Line], key: str) -> int:
    return sum(line[key] for line in lines)


def kills(lines: list[Line]) -> tuple[str, str]:
    """How many, and when; a line that does not hold is never written."""
    at: Counter[str] = Counter()
    for line in lines:
        at.update(line["at"])
    told = "; ".join(f"{count} {name}" for name, count in at.most_common())
    return f"{summed(lines, 'kills'):,}", f"identical (killed: {told})"


def flower_kills(lines: list[Line]) -> tuple[str, str]:
    """By process: the moments are those of the server's work."""
    at: Counter[str] = Counter()
    for line in lines:
        at.update({name.partition(",")[0]: 0 for name in line["at"]})
        for name, count in line["at"].items():
            at[name.partition(",")[0]] += count
    lost, ended = at.pop("a node's folder", 0), at.pop("a node ended by itself", 0)
    told = ", ".join(f"{count} {FLOWERS[name]}" for name, count in at.most_common())
    runs, rounds, servers = (summed(lines, key) for key in ("runs", "rounds", "servers"))
    return (
        f"{summed(lines, 'kills'):,}",
        f"identical in {runs} runs of {rounds} rounds that took {servers} servers (killed: "
        f"{told}); {lost} nodes' folders were lost, and {ended} nodes ended by themselves",
    )


def damage(lines: list[Line]) -> tuple[str, str]:
    refused = sum(n for line in lines for name, n in line.items() if name.endswith("refused"))
    read = sum(n for line in lines for name, n in line.items() if name.endswith("saved"))
    return f"{refused + read:,} files", f"{refused:,} refused, {read:,} read as they were saved"


def disk(lines: list[Line]) -> tuple[str, str]:
    return f"{summed(lines, 'troubles'):,}", f"identical; {summed(lines, 'sentences'):,} sentences"


def hostile(lines: list[Line]) -> tuple[str, str]:
    slowest = max(line["slowest_ms"] for line in lines)
    memory = max(line["most_memory_of_bound"] for line in lines)
    return (
        f"{summed(lines, 'messages'):,}",
        f"{summed(lines, 'other_exceptions')} other exceptions; slowest {slowest:g} ms; at most "
        f"{memory:.0%} of the memory that a message's length allows",
    )


def network(lines: list[Line]) -> tuple[str, str]:
    storms = [line["storms"] for line in lines]
    silence = [line["silence"] for line in lines if "silence" in line]
    packets: Counter[str] = Counter()
    for storm in storms:
        packets.update(storm["packets"])
    passed = packets.pop("passed")
    bad = ", ".join(f"{count:,} {name}" for name, count in packets.most_common())
    values = ", ".join(
        f"{100 * s['accuracy']:.1f} against {100 * s['accuracy_calm']:.1f} % (standard error "
        f"{100 * s['standard_error']:.1f})"
        for s in silence
    )
    return (
        f"{summed(storms, 'rounds')} rounds of storms, {summed(silence, 'rounds')} with silence",
        f"identical after storms ({passed:,} packets passed, {bad}); with silence {values}",
    )


ROWS: dict[str, tuple[str, Callable[[list[Line]], tuple[str, str]]]] = {
    "kill server": ("kill-server", kills),
    "kill clients": ("kill-clients", kills),
    "kill simulator": ("kill-simulator", kills),
    "kill flower": ("kill-flower", flower_kills),
    "kill secure": ("kill-secure", flower_kills),
    "network": ("network", network),
    "damage": ("damage", damage),
    "disk": ("disk", disk),
    "bytes": ("bytes", hostile),
}


def found(lines: list[Line]) -> str:
    rows = ["| campaign | how many | found |", "|---|---|---|"]
    for campaign, (name, tell) in ROWS.items():
        of_it = [line for line in lines if line["campaign"] == campaign]
        if of_it:
            rows.append(f"| `{name}` | {' | '.join(tell(of_it))} |")
    return "\n".join(rows)


def load(lines: list[Line]) -> str:
    rows = [
        "| a reply of a sketch | rounds | MB | ms | MB/s | MB more in a round | than at first |",
        "|---|---|---|---|---|---|---|",
    ]
    newest = {line["format"]: line for line in lines if GROWN in line}
    return "\n".join([*rows, *map(_row, newest.values())])


def _row(line: Line) -> str:
    grown, beyond = line[GROWN], line["memory_beyond_start_mb"]
    return (
        f"| {line['format']} | {line['rounds']} times {line['replies']:,} | {line['reply_mb']:g} | "
        f"{line['ms_per_reply']:g} | {line['mb_per_second']:,} | {grown:.1f} | {beyond:.0f} |"
    )


def replies(now: Path, before: Path) -> str:
    """What benchmarks/replies.py has measured, and at an earlier commit."""
    rows = [
        "| a reply of a sketch | MB | ms | MB/s of payload | MB/s before |",
        "|---|---|---|---|---|",
    ]
    pairs = zip(_measured(now), _measured(before), strict=True)
    for (bits, size, taken, speed), (*_, earlier) in pairs:
        name = {"32 bits": "floats", "16 bits": "bfloat16"}.get(bits, bits)
        rows.append(f"| {name} | {size} | {taken} | {speed} | {earlier} |")
    return "\n".join(rows)


def _measured(path: Path) -> list[list[str]]:
    """Bits, MB, milliseconds and MB/s of each row."""
    rows = json.loads(path.read_text())["rows"]
    units = (" MB", " ms", " MB/s")
    told = [[*row["what"].split(", "), row["measured"]] for row in rows]
    return [
        [bits, *(word.removesuffix(unit) for word, unit in zip(words, units, strict=True))]
        for bits, *words in told
    ]


TABLES = {"campaigns": found, "load": load}
REPLIES = "benchmarks/results/replies-cpu.json", "benchmarks/results/replies-before-cpu.json"
ROOT = Path(__file__).parents[2]


def written(page: str, lines: list[Line], source: str) -> str:
    """The page with its tables made anew, each between two comments."""
    for name, table in TABLES.items():
        page = _put(page, name, source, table(lines))
    return _put(page, "replies", REPLIES[0], replies(*(ROOT / path for path in REPLIES)))


def _put(page: str, name: str, source: str, table: str) -> str:
    head, end = f"<!-- {name} {source} -->", f"<!-- end {name} -->"
    before, mark, rest = page.partition(head)
    assert mark, f"the page has no {head}"
    return f"{before}{head}\n{table}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", type=Path, help="a page with places for the tables")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.results.read_text().splitlines()]
    if given.write is None:
        print("\n\n".join(table(lines) for table in TABLES.values()))
    else:
        page = written(given.write.read_text(), lines, str(given.results))
        given.write.write_text(page)


if __name__ == "__main__":
    main()
