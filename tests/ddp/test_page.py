"""The tables on the page are what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows(file):
    return json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())["rows"]


def test_tables():
    page = (ROOT / "docs/ddp.md").read_text()
    for row in rows("ddp-small-cpu"):
        sent, loss = row["step_bytes"] / 1e6, row["loss"]
        assert f"| `{row['method']}` | {sent:.3f} | {loss:.3f} |" in page
    for row in rows("ddp-four-cpu"):
        assert f"| `{row['method']}` | {row['loss']:.3f} |" in page
