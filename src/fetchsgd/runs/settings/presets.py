"""Settings that belong together, by name: what to train with when (`fetchsgd train --preset`).

They say nothing of the task: columns and rates stay the task's own, but for AdamW's, which
are much alike on all tasks. docs/results.md says what each has reached, and which suits whom.
"""

from __future__ import annotations

from fetchsgd.errors import UserError
from fetchsgd.named import did_you_mean
from fetchsgd.runs.toml_files import Settings

PRESETS: dict[str, Settings] = {
    # The method as it was published: one hash for the whole run, float32 both ways.
    "paper": {"method": {"name": "fetchsgd", "hash": "fixed"}},
    # The server sees only sums of messages, as with secure aggregation: sketches, which add up, and
    # no k, as below.
    "sums": {
        "method": {"name": "fetchsgd", "hash": "fresh", "k": 0},
        "download": {"grid": "steps"},
    },
    # The server sees each message: whole gradients in few levels of one step for all clients, and
    # no k: a weight moves when what has come together for it makes a whole step.
    "messages": {
        "method": {"name": "uncompressed"},
        "upload": {"quantiser": "shared_step"},
        "download": {"grid": "steps"},
    },
    # Few workers with much data each, many local steps, and slow links (docs/local.md).
    "diloco": {
        "method": {"name": "uncompressed", "momentum": 0.9, "nesterov": True},
        "schedule": {"kind": "linear", "peak": 1e-3},
        "local": {
            "steps": 30, "batch_size": 16, "optimizer": "adamw", "state": "keep", "clip": 1.0,
            "outer_rate": 0.7,
        },
        "upload": {"quantiser": "shared_step", "density": 0.1},
    },
}  # fmt: skip


def preset(name: str) -> Settings:
    """The settings of that name."""
    if name not in PRESETS:
        raise UserError(f"there is no preset {name!r}{did_you_mean(name, PRESETS)}")
    return PRESETS[name]
