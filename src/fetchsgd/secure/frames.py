"""What all messages have in common: a header, a body of known size and, from clients, a signature.

    0   magic       FSGA
    4   version     u8, 1
    5   kind        u8
    6   zero        u16
    8   client      u32, who sends it or to whom it is sent
    12  tag         the first 16 bytes of the terms' digest
    28  body        its size follows from the terms and the number of clients that sent keys
    ..  signature   64 bytes, clients' messages only

A signature is Ed25519's, by the client's long-lived key, over a fixed text, the terms' digest, and
SHA-256 of header and body.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.kinds import HEADER, SIGNATURE_BYTES, Kind
from fetchsgd.secure.terms import VERSION, Terms

MAGIC = b"FSGA"
HEADER_BYTES = HEADER.size


def frame(kind: Kind, client: int, terms: Terms, *body: bytes | memoryview) -> bytes:
    """A message of the server, or of a client before it is signed."""
    return b"".join((HEADER.pack(MAGIC, VERSION, kind, 0, client, terms.tag), *body))


def sign(digest: bytes, terms: Terms, identity: Ed25519PrivateKey) -> bytes:
    """The signature for a message of this SHA-256."""
    return identity.sign(_statement(digest, terms))


def is_signed(message: bytes | memoryview, signature: bytes, terms: Terms, key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            signature, _statement(hashlib.sha256(message).digest(), terms)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(digest: bytes, terms: Terms) -> bytes:
    return b"fetchsgd secure signature" + terms.digest + digest


def read_header(message: bytes) -> tuple[Kind, int, bytes]:
    """Kind, client and tag."""
    if len(message) < HEADER_BYTES:
        raise RefusedError(f"a message has at least {HEADER_BYTES} bytes, this one {len(message)}")
    magic, version, kind, zero, client, tag = HEADER.unpack_from(message)
    if magic != MAGIC or zero != 0:
        raise RefusedError("this is not a message of secure aggregation")
    if version != VERSION:
        raise RefusedError(f"version {version} is not known; this library speaks {VERSION}")
    try:
        return Kind(kind), client, tag
    except ValueError:
        raise RefusedError(f"there is no message of kind {kind}") from None


def open_frame(message: bytes, kind: Kind, terms: Terms, client: int, size: int) -> memoryview:
    """The body of a message from the server, of the kind, round, addressee and size expected."""
    found, addressee, tag = read_header(message)
    if found != kind:
        raise RefusedError(f"{kind} was expected, and {found} has come")
    if tag != terms.tag:
        raise RefusedError(f"{kind} belongs to another round, or to other terms of this one")
    if addressee != client:
        raise RefusedError(f"{kind} is for client {addressee}, not for {client}")
    if len(message) != HEADER_BYTES + size:
        raise RefusedError(f"{kind} has {len(message)} bytes instead of {HEADER_BYTES + size}")
    return memoryview(message)[HEADER_BYTES:]


def open_signed(
    message: bytes, kind: Kind, terms: Terms, directory: Mapping[int, bytes], size: int
) -> tuple[int, memoryview]:
    """Sender and body of a client's message, after its signature has been checked."""
    _, client, _ = read_header(message)
    body = open_frame(message, kind, terms, client, size + SIGNATURE_BYTES)[:size]
    if client not in terms.cohort_set or client not in directory:
        raise RefusedError(f"client {client} has no part in this round, or no known key")
    signed, signature = memoryview(message)[:-SIGNATURE_BYTES], message[-SIGNATURE_BYTES:]
    if not is_signed(signed, signature, terms, directory[client]):
        raise RefusedError(f"the signature of client {client} under {kind} is wrong")
    return client, body
