"""Every key of a round: derived with HKDF, and bound to its purpose, the round and its owners.

A client draws one secret seed for a round. Its two X25519 keys, the seed of its self-mask and the
polynomials that share them follow from it, so a client that was interrupted goes on as it began.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.kinds import KEY_BYTES
from fetchsgd.secure.secret import SECRET_BYTES, Secret
from fetchsgd.secure.terms import Terms


@dataclass(frozen=True)
class OwnKeys:
    """What a client's seed gives for one round."""

    mask: X25519PrivateKey
    share: X25519PrivateKey
    self_mask: Secret

    @classmethod
    def derive(cls, seed: Secret, terms: Terms, number: int) -> OwnKeys:
        owner = _u32(number)
        return cls(
            X25519PrivateKey.from_private_bytes(_derive(seed, terms, b"mask key", owner).reveal()),
            X25519PrivateKey.from_private_bytes(_derive(seed, terms, b"share key", owner).reveal()),
            _derive(seed, terms, b"self mask seed", owner),
        )

    def secrets(self) -> bytes:
        """What is shared among the neighbours."""
        return self.self_mask.reveal() + self.mask.private_bytes_raw()


def commitment(self_mask: Secret, terms: Terms, number: int) -> bytes:
    """Tells a wrongly restored seed from the right one, and nothing else about it."""
    text = b"fetchsgd secure commitment" + terms.digest + _u32(number)
    return hashlib.sha256(text + self_mask.reveal()).digest()


def polynomial_key(seed: Secret, terms: Terms, number: int, roster: bytes) -> Secret:
    return _derive(seed, terms, b"polynomials", _u32(number) + roster)


def noise_key(seed: Secret, terms: Terms, number: int) -> Secret:
    """For noise that a client adds to its vector before it is masked; shared with nobody."""
    return _derive(seed, terms, b"noise", _u32(number))


def self_mask_key(self_mask: Secret, terms: Terms, number: int) -> Secret:
    return _derive(self_mask, terms, b"self mask", _u32(number))


def pair_mask_key(
    own: X25519PrivateKey, other: bytes, terms: Terms, pair: tuple[int, int]
) -> Secret:
    """The same for both of a pair."""
    names = b"".join(_u32(number) for number in sorted(pair))
    return _derive(_agree(own, other), terms, b"pair mask", names)


def seal_share(
    own: X25519PrivateKey,
    other: bytes,
    share: bytes,
    terms: Terms,
    way: tuple[int, int],
    roster: bytes,
) -> bytes:
    """Encrypted from way[0] to way[1]; each key encrypts this one message, so the nonce is zero."""
    return _cipher(own, other, terms, way, roster).encrypt(bytes(12), share, None)


def open_share(
    own: X25519PrivateKey,
    other: bytes,
    sealed: bytes,
    terms: Terms,
    way: tuple[int, int],
    roster: bytes,
) -> bytes | None:
    """None if it is not what way[0] has sealed."""
    try:
        return _cipher(own, other, terms, way, roster).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def _cipher(
    own: X25519PrivateKey, other: bytes, terms: Terms, way: tuple[int, int], roster: bytes
) -> AESGCM:
    context = _u32(way[0]) + _u32(way[1]) + roster
    return AESGCM(_derive(_agree(own, other), terms, b"share", context).reveal())


def is_usable(key: bytes) -> bool:
    """That a public key is none of the few with which every agreement gives zero."""
    try:
        X25519PrivateKey.from_private_bytes(b"\1" * KEY_BYTES).exchange(
            X25519PublicKey.from_public_bytes(key)
        )
    except ValueError:
        return False
    return True


def _agree(own: X25519PrivateKey, other: bytes) -> Secret:
    try:
        return Secret(own.exchange(X25519PublicKey.from_public_bytes(other)))
    except ValueError:
        raise RefusedError("a key was sent with which no secret can be agreed on") from None


def _derive(secret: Secret, terms: Terms, purpose: bytes, context: bytes) -> Secret:
    info = b"fetchsgd secure " + purpose + b"\0" + terms.digest + context
    kdf = HKDF(algorithm=hashes.SHA256(), length=SECRET_BYTES, salt=None, info=info)
    return Secret(kdf.derive(secret.reveal()))


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)
