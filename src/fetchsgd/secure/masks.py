"""Masks: keystreams of AES-256 in counter mode, added to totals and to cells.

A key's stream gives eight bytes for each total, then the planes of the cells; each key is used for
one mask in one round, so the counter starts at zero. Vectors are masked piece by piece, each piece
by all keys before the next, so that it stays in the cache: the stream is written there, and added
at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from jaxtyping import UInt64
from numpy import ndarray

from fetchsgd.secure import planes
from fetchsgd.secure.secret import Secret

PIECE_BYTES = 1 << 17
_AT_ONCE = 64  # streams that are open together


def keystream(key: Secret, size: int) -> bytes:
    return _stream(key).update(bytes(size))


def add_masks(
    totals: UInt64[ndarray, " totals"],
    words: UInt64[ndarray, " words"],
    bits: int,
    masks: Iterable[tuple[Secret, bool]],
) -> None:
    """Add the mask of each key in place, or subtract it where True stands beside it."""
    waiting = iter(masks)
    while some := list(islice(waiting, _AT_ONCE)):
        _add_some(totals, words, bits, [(_stream(key), negative) for key, negative in some])


def _add_some(
    totals: UInt64[ndarray, " totals"],
    words: UInt64[ndarray, " words"],
    bits: int,
    streams: list[tuple[CipherContext, bool]],
) -> None:
    for stream, negative in streams:
        mask = np.frombuffer(stream.update(bytes(totals.nbytes)), "<u8")
        totals += -mask if negative else mask
    block = planes.LANES * bits
    piece = max(1, PIECE_BYTES // (8 * block)) * block
    zeros = memoryview(bytes(8 * piece))
    mask = np.empty(piece + 2, dtype=np.uint64)  # the cipher wants room for one block more
    room = mask.data.cast("B")
    for part in _pieces(words, piece):
        size = part.nbytes
        for stream, negative in streams:
            stream.update_into(zeros[:size], room)
            planes.add(part, mask[: part.size], bits, negative)


def _pieces(words: UInt64[ndarray, " words"], piece: int) -> Iterator[UInt64[ndarray, " piece"]]:
    for first in range(0, words.size, piece):
        yield words[first : first + piece]


def _stream(key: Secret) -> CipherContext:
    return Cipher(algorithms.AES(key.reveal()), modes.CTR(bytes(16))).encryptor()
