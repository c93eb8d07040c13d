"""Versions of what is sent. Programs that differ in one refuse each other, and name both.

They are apart from the code that they are of: a node that only says who it is needs no torch.
"""

from __future__ import annotations

WIRE_FORMAT = 1  # of payloads: docs/wire.md and docs/hash.md
PROTOCOL = 5  # of what is around them on Flower: docs/protocol.md
FRAMES = 1  # of what is around them elsewhere: exchange/frames.py


def refusal(what: str, theirs: int, ours: int) -> str:
    """The sentence for a message of another version."""
    return (
        f"the message is in version {theirs} of {what}, and this side speaks version {ours}; "
        "both need the same release of fetchsgd"
    )
