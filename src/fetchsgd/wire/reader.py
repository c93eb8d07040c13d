"""Walk through the bytes of a message; every step checks that the bytes are there.

Numbers of unknown size are LEB128: seven bits in each byte, lowest first, the top bit set on all
bytes but the last. Each number is written in one way: the last byte is zero only in the number 0.
"""

from __future__ import annotations

from fetchsgd.wire.errors import WireError


class Reader:
    """A place in a message."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int, what: str) -> memoryview:
        if size > self.left:
            raise WireError(f"{what} needs {size} bytes, but only {self.left} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self, what: str) -> int:
        return self.take(1, what)[0]

    def number(self, what: str, limit: int) -> int:
        """A LEB128 number of at most `limit`."""
        value = shift = 0
        while True:
            byte = self.byte(what)
            value |= (byte & 127) << shift
            shift += 7
            if value > limit or (byte == 0 and shift > 7):
                raise WireError(f"{what} is above {limit} or written with more bytes than it needs")
            if byte < 128:
                return value

    def zeros(self, size: int, what: str) -> None:
        if any(self.take(size, what)):
            raise WireError(f"{what} must be zero")


def number_bytes(value: int) -> bytes:
    """A number as LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
