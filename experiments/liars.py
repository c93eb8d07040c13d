"""What liars cost, in Markdown, from a results file: a table of rules against lies, and the worst.

    python experiments/liars.py results/digits-liars.jsonl
    python experiments/liars.py --write docs/reliability.md

A page holds it between `<!-- liars FILE -->` and `<!-- end liars -->`; all of a page are renewed.
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
RULES = ("mean", "vetted", "filtered", "nearest", "trimmed", "median", "clipped")

# Accuracies in per cent of each seed, by lie, share of liars, and rule; nan where a run diverged.
Found = dict[tuple[str, float, str], list[float]]


def read(results: Path) -> Found:
    found: Found = defaultdict(list)
    for line in results.read_text().splitlines():
        run: dict[str, Any] = json.loads(line)
        config = run["config"]
        attack, rule = config["attack"], config["merge"]["name"]
        value = 100 * run["value"] if run["status"] == "finished" else math.nan
        found[_lie(attack), attack.get("share", 0.0), rule].append(value)
    return found


def _lie(attack: dict[str, Any]) -> str:
    """Its name, and in which way it is more cunning than usual."""
    more = [f", {key} {attack[key]:g}" for key in ("after", "apart") if attack.get(key)]
    return attack["name"] + "".join(more)


def table(found: Found) -> list[str]:
    """Means over as many seeds as there are."""
    rules = sorted({rule for _, _, rule in found}, key=RULES.index)
    kinds = sorted({key[:2] for key in found}, key=lambda k: (k[1], _place(k[0])))
    lines = [f"| lie | liars | {' | '.join(rules)} |", f"|---|---|{'---|' * len(rules)}"]
    for name, share in kinds:
        cells = [_cell(found.get((name, share, rule), [])) for rule in rules]
        lines.append(f"| {name} | {share:.0%} | {' | '.join(cells)} |")
    return lines


def costs(found: Found) -> list[str]:
    """A sentence for each rule: what it costs at worst, against the mean without liars."""
    honest = mean(found["none", 0.0, "mean"])
    lines = [f"Against the mean without liars, {honest:.1f} %, in points:", ""]
    for rule in RULES:
        parts = []
        if rule != "mean" and (values := found.get(("none", 0.0, rule))):
            parts.append(f"{_points(honest - mean(values))} without liars")
        for share in sorted({key[1] for key in found if key[0] != "none"}):
            lies = {
                key[0]: honest - mean(values)
                for key, values in found.items()
                if key[1:] == (share, rule) and key[0] in ORDER[1:]
            }
            if lies:
                parts.append(f"with {share:.0%} liars {_worst(lies)}")
        if len(parts) > 1 or (parts and rule == "mean"):
            lines.append(f"- `{rule}` loses {', '.join(parts)}.")
    return lines


def _worst(lies: dict[str, float]) -> str:
    diverged = [name for name, cost in lies.items() if math.isnan(cost)]
    if diverged:
        others = {name: cost for name, cost in lies.items() if not math.isnan(cost)}
        rest = f", else at most {_worst_of(others)}" if others else ""
        return f"everything (`{'`, `'.join(sorted(diverged))}`){rest}"
    return f"at most {_worst_of(lies)}"


def _worst_of(lies: dict[str, float]) -> str:
    name = max(lies, key=lies.__getitem__)
    return f"{_points(lies[name])} (`{name}`)"


def _points(cost: float) -> str:
    return f"{cost:.1f}".replace("-0.0", "0.0")


def _place(lie: str) -> tuple[bool, int, str]:
    return "," in lie, ORDER.index(lie.split(",")[0]), lie


def _cell(values: list[float]) -> str:
    if any(map(math.isnan, values)):
        return "diverged"
    return f"{mean(values):.1f} ({len(values)})" if values else ""


def shown(results: Path) -> str:
    found = read(results)
    return "\n".join([*table(found), "", *costs(found)])


def renewed(page: str, root: Path) -> str:
    """A page whose tables say what the results under `root` say."""

    def anew(match: re.Match[str]) -> str:
        return f"{match[1]}{shown(root / match[2])}\n{match[3]}"

    pattern = r"(<!-- liars (\S+) -->\n).*?(<!-- end liars -->)"
    return re.sub(pattern, anew, page, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    for results in given.results:
        print(shown(results))
    if given.write is not None:
        given.write.write_text(renewed(given.write.read_text(), Path()))


if __name__ == "__main__":
    main()
