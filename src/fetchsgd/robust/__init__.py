"""Merging that a minority of liars cannot steer, and the liars to try it with."""

from fetchsgd.robust.attacks import ATTACKS, Attack, Liars
from fetchsgd.robust.merger import Merger
from fetchsgd.robust.rules import Clipped, Filtered, Mean, Median, Nearest, Rule, Trimmed, Vetted

RULES: dict[str, type] = {
    "mean": Mean,
    "clipped": Clipped,
    "median": Median,
    "trimmed": Trimmed,
    "nearest": Nearest,
    "filtered": Filtered,
    "vetted": Vetted,
}

__all__ = [
    "ATTACKS",
    "RULES",
    "Attack",
    "Clipped",
    "Filtered",
    "Liars",
    "Mean",
    "Median",
    "Merger",
    "Nearest",
    "Rule",
    "Trimmed",
    "Vetted",
]
