"""A node proves which client it is, by that client's key.

The server greets each node with a challenge of its own, and the node signs all that this is about:

    "fetchsgd flower hello", protocol, lineage of the server's run, challenge, node,
    client, lineage of what it holds, version that it holds

each as text or bytes behind its length, so that no two introductions are signed by the same bytes.
A challenge is used once, which makes an old introduction worthless; the node's number is in it, so
nobody can pass on the introduction of another; and the text in front keeps such a signature from
meaning anything elsewhere that this key signs (secure/frames.py has another text).
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fetchsgd.exchange.messages import Greeting, Hello
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.identities import Directory
from fetchsgd.versions import PROTOCOL

PURPOSE = "fetchsgd flower hello"
CHALLENGE_BYTES = 32


def make_challenge() -> bytes:
    """One that nobody has seen, and that will not come again."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def proven(hello: Hello, greeting: Greeting, node: int, identity: Ed25519PrivateKey) -> Hello:
    """The same introduction, signed for this greeting and for this node."""
    return replace(hello, signature=identity.sign(_signed(hello, greeting, node)))


def check_proof(hello: Hello, greeting: Greeting, node: int, directory: Directory) -> None:
    """RejectedError unless the node has the key of the client that it says it is."""
    who = f"it says that it is client {hello.client}"
    key = directory.get(hello.client)
    if key is None:
        raise RejectedError(
            "identity",
            f"{who}, whose key is not in federation.directory; make one by python -m "
            f"fetchsgd.flower.keys --clients {hello.client + 1}, which extends the directory",
        )
    if not hello.signature:
        raise RejectedError(
            "identity", f"{who} and does not prove it; {how_to_prove(hello.client)}"
        )
    try:
        public = Ed25519PublicKey.from_public_bytes(key)
        public.verify(hello.signature, _signed(hello, greeting, node))
    except (InvalidSignature, ValueError) as error:
        raise RejectedError(
            "identity",
            f"{who}, but has not signed this greeting by that client's key; if it is no impostor, "
            f"its identity is another client's, or federation.directory is older than its key",
        ) from error


def how_to_prove(client: int) -> str:
    return (
        "start its SuperNode with --node-config "
        f"""'partition-id={client} identity="/path/to/client-{client}"', the key of that client"""
    )


def _signed(hello: Hello, greeting: Greeting, node: int) -> bytes:
    said: list[str | int | bytes] = [
        PURPOSE, PROTOCOL, greeting.lineage, greeting.challenge, node,
        hello.client, hello.lineage, hello.held,
    ]  # fmt: skip
    return b"".join(_behind_its_length(part) for part in said)


def _behind_its_length(part: str | int | bytes) -> bytes:
    # Whatever a client may have written as text must have bytes, and no two texts the same.
    data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
