"""The kinds of messages, and how long their parts are: all that counting bytes needs, and no key.

So a simulation can count what it never sends where the package `cryptography` is missing.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from fetchsgd.secure.secret import SECRET_BYTES

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SHARE_BYTES = 2 * SECRET_BYTES  # of the self-mask's seed, and of the mask key
SEALED_BYTES = SHARE_BYTES + 16  # with the tag of AES-GCM
HEADER = struct.Struct("<4sBBHI16s")  # frames.py says what is in it


class Kind(IntEnum):
    """Messages in the order in which they are sent; the odd ones are the server's.

    A pledge is never sent by itself: its signature goes with the masked vector.
    """

    INVITATION = 1
    ADVERT = 2
    ROSTER = 3
    SHARES = 4
    DELIVERY = 5
    MASKED = 6
    SURVIVORS = 7
    AGREEMENT = 8
    REQUEST = 9
    REVEAL = 10
    PLEDGE = 11

    def __str__(self) -> str:
        return self.name.lower()
