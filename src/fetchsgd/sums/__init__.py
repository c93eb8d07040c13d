"""Sums that hide what each client sent; modular.py says how they are made."""

from fetchsgd.sums.level_rows import LevelRows
from fetchsgd.sums.modular import Modular, ModularRound, Opened, Plain

# By the names that settings use.
SUMS: dict[str, type] = {"plain": Plain, "modular": Modular}

__all__ = ["SUMS", "LevelRows", "Modular", "ModularRound", "Opened", "Plain"]
