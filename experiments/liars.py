"""The table of what liars cost, in Markdown, from a results file: rules against lies.

    python experiments/liars.py results/digits-liars.jsonl --write docs/reliability.md

A page holds it between `<!-- liars FILE -->` and `<!-- end liars -->`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

ORDER = ("none", "flip", "collude", "noise", "little", "replay", "examples", "scale")
RULES = ("mean", "filtered", "nearest", "trimmed", "median", "clipped")


def table(results: Path) -> str:
    """Mean accuracies in per cent, over as many seeds as there are."""
    found: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for line in results.read_text().splitlines():
        run: dict[str, Any] = json.loads(line)
        config = run["config"]
        attack, rule = config["attack"], config["merge"]["name"]
        value = 100 * run["value"] if run["status"] == "finished" else math.nan
        found[attack["name"], attack.get("share", 0.0), rule].append(value)
    rules = sorted({rule for _, _, rule in found}, key=RULES.index)
    kinds = sorted({key[:2] for key in found}, key=lambda k: (k[1], ORDER.index(k[0])))
    lines = [f"| lie | liars | {' | '.join(rules)} |", f"|---|---|{'---|' * len(rules)}"]
    for name, share in kinds:
        cells = [_cell(found.get((name, share, rule), [])) for rule in rules]
        lines.append(f"| {name} | {share:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if any(map(math.isnan, values)):
        return "diverged"
    return f"{mean(values):.1f} ({len(values)})" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    found = table(given.results)
    if given.write is None:
        print(found)
        return
    name = given.results.as_posix()
    pattern = rf"(<!-- liars {re.escape(name)} -->\n).*?(<!-- end liars -->)"
    page = given.write.read_text()
    given.write.write_text(re.sub(pattern, rf"\g<1>{found}\n\g<2>", page, flags=re.S))


if __name__ == "__main__":
    main()
