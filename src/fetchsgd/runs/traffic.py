"""What a run has sent, by both counts, and how much less that is than without compression."""

from __future__ import annotations

from fetchsgd.runs.setup import Setup
from fetchsgd.server.ledger import BYTES_PER_NUMBER, Ledger


def traffic(setup: Setup, ledger: Ledger) -> dict[str, float | None]:
    """Both counts of bytes, and how much less that is than uncompressed SGD (section 5)."""
    counts: dict[str, float | None] = {}
    for prefix, bytes in (("", ledger.bytes), ("wire_", ledger.wire_bytes)):
        counts |= {f"{prefix}upload_bytes": bytes.up, f"{prefix}download_bytes": bytes.down}
        found = compressions(setup, *bytes)
        counts |= {f"{prefix}{name}": value for name, value in found.items()}
    return counts


def compressions(setup: Setup, up: int, down: int) -> dict[str, float | None]:
    """Relative to uncompressed SGD at the baseline's number of rounds."""
    sampler = setup.sampler
    rounds = round(setup.config.train.baseline_epochs * sampler.rounds_per_epoch)
    per_epoch = sampler.num_clients
    if sampler.how != "epoch":
        per_epoch = sampler.rounds_per_epoch * sampler.per_round
    clients = per_epoch * rounds / sampler.rounds_per_epoch
    whole = BYTES_PER_NUMBER * setup.model.dim * clients
    return {
        "upload_compression": whole / up if up else None,
        "download_compression": whole / down if down else None,
        "overall_compression": 2 * whole / (up + down) if up + down else None,
    }
