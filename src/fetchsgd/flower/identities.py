"""Who clients are: each has a long-lived Ed25519 key, and all know everybody's public key.

    client-0, client-1 ...   a client's private key; goes to that client's machine alone
    directory.json           the public keys, {"clients": {"0": "<hexadecimal>", ...}}

keys.py makes them. A client is told of both by its node: `--node-config 'partition-id=0
identity="keys/client-0" directory="keys/directory.json"'`; a server by `federation.directory`.
Clients must not take the directory from the server if it is to protect them from that server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fetchsgd.errors import UserError

KEY_BYTES = 32
Directory = Mapping[int, bytes]


def read_identity(path: Path) -> Ed25519PrivateKey:
    """A client's private key, or a sentence."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read the client's key {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a private key as fetchsgd.flower.keys makes it") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} is not an Ed25519 key; nodes' keys for Flower are others")
    return key


def read_directory(path: Path) -> dict[int, bytes]:
    """Every client's public key by its number, or a sentence."""
    try:
        clients = json.loads(path.read_text(), object_pairs_hook=_each_once)["clients"]
        found = {_number(text): bytes.fromhex(key) for text, key in clients.items()}
    except OSError as error:
        raise UserError(f"cannot read the directory {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a directory of clients' public keys: {error}") from error
    for number, key in found.items():
        if len(key) != KEY_BYTES:
            raise UserError(
                f"{path}: the key of client {number} has {len(key)} bytes, not {KEY_BYTES}"
            )
    if len(set(found.values())) != len(found):
        raise UserError(f"{path}: two clients have the same key")
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON would take the last of two clients with one number."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _number(text: str) -> int:
    """A client's number in the one way in which it is written, so that none is there twice."""
    if not (text.isascii() and text.isdigit() and str(int(text)) == text):
        raise ValueError(f"{text!r} is not a client's number")
    return int(text)


def write_directory(path: Path, keys: Directory) -> None:
    clients = {str(number): keys[number].hex() for number in sorted(keys)}
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps({"clients": clients}, indent=1) + "\n")
    beside.replace(path)  # never half of it


def servers_directory(path: str) -> dict[int, bytes] | None:
    """Whom a server knows by their keys; None where it believes what nodes say."""
    return read_directory(Path(path)) if path else None


def own_identity(node_config: Mapping[str, Any], client: int) -> Ed25519PrivateKey | None:
    """This node's key, if it has been given one."""
    path = _path(node_config, "identity", client)
    return None if path is None else read_identity(path)


def own_directory(node_config: Mapping[str, Any], client: int) -> dict[int, bytes] | None:
    """The directory that this node has been given, if any."""
    path = _path(node_config, "directory", client)
    return None if path is None else read_directory(path)


def _path(node_config: Mapping[str, Any], name: str, client: int) -> Path | None:
    given = node_config.get(name)
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise UserError(
            f"{name} must name a file of this node, got {given!r}; start the SuperNode with "
            f"""--node-config 'partition-id={client} {name}="/path/to/file"'"""
        )
    return Path(given)
