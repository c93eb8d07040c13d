"""Campaign "bytes": hostile messages against the decoder, frames, and the server's judgement.

Promised: nothing but WireError comes out of the decoder and nothing but RejectedError out of the
protocol; what is read is written back to the same bytes; memory is bounded by the message, and no
message takes more than 100 ms of processor time (bounds.py).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos.bounds import within_bounds
from chaos.decoder import decoded
from chaos.honest import Captured, captured
from chaos.mutations import EDGES, mutated
from wire.messages import one_of_each

from fetchsgd.exchange.frames import HEAD, from_frame, to_frame
from fetchsgd.exchange.merging import judge
from fetchsgd.exchange.messages import Answer, ResendRequest
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.protocol import HEADER, from_records, to_records

STRANGE: tuple[Any, ...] = (
    *EDGES[:-1], -1, -(2**63), 0.0, -1.0, 1e308, float("nan"), float("inf"), True, "", "x" * 999,
    "answer", "asks", "work", b"", b"\0" * 99, [1, 2], ["a"], [b"x"], [0.5],
)  # fmt: skip
WAYS = ("decoder", "protocol", "frames")


def frame_of(answer: Answer, payload: bytes, random: Random) -> bytes:
    """The same in a frame of fetchsgd.exchange, whose checksum is repaired, too."""
    frame = bytearray(to_frame(replace(answer, payload=payload)))
    at = random.randrange(HEAD.size, min(len(frame), 80))
    if random.random() < 0.5:
        frame[at : at + 8] = struct.pack("<Q", random.choice(EDGES))
    elif random.random() < 0.3:
        del frame[at:]
    frame[5 : HEAD.size] = struct.pack("<I", zlib.crc32(frame[HEAD.size :]))
    return bytes(frame)


def framed(frame: bytes) -> bool:
    try:
        from_frame(frame, Answer, ResendRequest)
    except RejectedError:
        return False
    return True


def records_of(honest: Captured, payload: bytes, random: Random) -> Any:
    """As Flower's records, to pass all checks of a reply."""
    records = to_records(replace(honest.answer, payload=payload))
    if random.random() < 0.3:
        _change(records.config_records[HEADER], random)
    return records


def _change(header: Any, random: Random) -> None:
    name = random.choice(list(header))
    if random.random() < 0.2:
        del header[name]
    else:
        header[name] = random.choice(STRANGE)


def accepted(records: Any, honest: Captured) -> bool:
    try:
        content = from_records(records, Answer, ResendRequest)
        if isinstance(content, Answer):
            judge(content, honest.client, honest.expected)
    except RejectedError:
        return False
    return True


def one(
    kinds: list[bytes], honest: list[Captured], random: Random, counts: dict[str, int]
) -> tuple[bytes, Callable[[], bool]]:
    """One message by one of the three ways, and how to try it again."""
    (way,) = random.choices(WAYS, (6, 3, 1))
    which = random.choice(honest)
    message = mutated(kinds if way == "decoder" else [which.answer.payload], random)
    counts[way] += 1
    try:
        if way == "decoder":
            attempt, passed = partial(decoded, message), "read"
        elif way == "protocol":
            records = records_of(which, message, random)
            attempt, passed = partial(accepted, records, which), "accepted"
        else:
            attempt, passed = partial(framed, frame_of(which.answer, message, random)), "framed"
        counts[passed] += attempt()
    except Exception as error:
        error.add_note(f"{way}: {message.hex()}")
        raise
    return message, attempt


def campaign(seed: int, count: int, seconds: float, folder: Path) -> dict[str, Any]:
    """So many messages, or as many as the seconds allow."""
    kinds, honest = list(one_of_each().values()), captured(folder)
    random, counts = (
        Random(f"bytes {seed}"),
        dict.fromkeys((*WAYS, "read", "accepted", "framed"), 0),
    )
    assert all(map(decoded, kinds))  # numba compiles
    assert all(accepted(to_records(each.answer), each) for each in honest)
    worst = within_bounds(lambda: one(kinds, honest, random, counts), count, seconds)
    return {
        "campaign": "bytes", "seed": seed, "messages": worst.messages, **counts,
        "other_exceptions": 0, "slowest_ms": round(1000 * worst.seconds, 2),
        "slowest_at_first_ms": round(1000 * worst.seconds_at_first, 2),
        "most_memory_of_bound": round(worst.memory, 3),
    }  # fmt: skip
