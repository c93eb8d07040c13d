"""Campaign "bytes": hostile messages against the decoder, frames, and the server's judgement.

Promised: nothing but WireError comes out of the decoder and nothing but RejectedError out of the
protocol; what is read is written back to the same bytes; memory is bounded by the message; no
message takes more than 100 ms of processor time. The bound on memory is the kernel's: while a
message is judged the process may grow by no more than ROOM beyond what it took after warming up, so
that one that asks for more ends in a MemoryError, which is a failure.
"""

from __future__ import annotations

import resource
import struct
import time
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import fetchsgd.quantisers  # noqa: F401  (what reads its sections)
from chaos.honest import Captured, captured
from chaos.mutations import EDGES, MOST_BYTES, mutated
from fetchsgd.exchange.frames import HEAD, from_frame, to_frame
from fetchsgd.exchange.merging import judge
from fetchsgd.exchange.messages import Answer, ResendRequest
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.protocol import HEADER, from_records, to_records
from fetchsgd.wire import WireError
from fetchsgd.wire.codec import parse, write
from wire.messages import one_of_each

SLOWEST = 0.1  # seconds of processor time
PER_BYTE, BEYOND = 600, 2_000_000  # of memory, as tests/wire has it
ROOM = PER_BYTE * MOST_BYTES + BEYOND + (32 << 20)  # and what an allocator takes at a time
STRANGE: tuple[Any, ...] = (
    *EDGES[:-1], -1, -(2**63), 0.0, -1.0, 1e308, float("nan"), float("inf"), True, "", "x" * 999,
    "answer", "asks", "work", b"", b"\0" * 99, [1, 2], ["a"], [b"x"], [0.5],
)  # fmt: skip
WAYS = ("decoder", "protocol", "frames")
SAMPLED = 500  # every so many messages the memory is measured as well as bounded


def decoded(message: bytes) -> bool:
    """Whether the decoder takes it; it must then write it back as it was."""
    try:
        found = parse(message)
    except WireError:
        return False
    assert write(*found) == message, "a message was read that is not written like that"
    return True


def framed(answer: Answer, payload: bytes, random: Random) -> bool:
    """The same in a frame of fetchsgd.exchange, whose checksum is repaired, too."""
    frame = bytearray(to_frame(replace(answer, payload=payload)))
    at = random.randrange(HEAD.size, min(len(frame), 80))
    if random.random() < 0.5:
        frame[at : at + 8] = struct.pack("<Q", random.choice(EDGES))
    elif random.random() < 0.3:
        del frame[at:]
    frame[5 : HEAD.size] = struct.pack("<I", zlib.crc32(frame[HEAD.size :]))
    try:
        from_frame(bytes(frame), Answer, ResendRequest)
    except RejectedError:
        return False
    return True


def judged(honest: Captured, payload: bytes, random: Random) -> bool:
    """Through the records of Flower and all checks of a reply."""
    records = to_records(replace(honest.answer, payload=payload))
    if random.random() < 0.3:
        _change(records.config_records[HEADER], random)
    return accepted(records, honest)


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
) -> bytes:
    """One message by one of the three ways."""
    (way,) = random.choices(WAYS, (6, 3, 1))
    which = random.choice(honest)
    message = mutated(kinds if way == "decoder" else [which.answer.payload], random)
    counts[way] += 1
    try:
        if way == "decoder":
            counts["read"] += decoded(message)
        elif way == "protocol":
            counts["accepted"] += judged(which, message, random)
        else:
            counts["framed"] += framed(which.answer, message, random)
    except Exception as error:
        error.add_note(f"{way}: {message.hex()}")
        raise
    return message


def campaign(seed: int, count: int, seconds: float, folder: Path) -> dict[str, Any]:
    """So many messages, or as many as the seconds allow."""
    kinds, honest = list(one_of_each().values()), captured(folder)
    random = Random(f"bytes {seed}")
    counts = dict.fromkeys(WAYS + ("read", "accepted", "framed"), 0)
    for message in kinds:  # numba compiles, allocators take what they keep
        assert decoded(message)
    for each in honest:
        assert accepted(to_records(each.answer), each)
    for _ in range(300):
        one(kinds, honest, random, counts)
    slowest, most, done = 0.0, 0.0, sum(counts[name] for name in WAYS)
    end = time.monotonic() + seconds
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + ROOM, before[1]))
    try:
        while done < count and (done % 256 or time.monotonic() < end):
            if done % SAMPLED == 0:
                most = max(most, _memory_of_one(kinds, honest, random, counts))
            else:
                began = time.process_time()
                one(kinds, honest, random, counts)
                slowest = max(slowest, time.process_time() - began)
            done += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert slowest <= SLOWEST, f"a message took {slowest:.3f} s"
    assert most <= 1, f"a message took {most:.2f} times the memory that its length allows"
    return {
        "campaign": "bytes", "seed": seed, "messages": done, **counts, "other_exceptions": 0,
        "slowest_ms": round(1000 * slowest, 2), "most_memory_of_bound": round(most, 3),
    }  # fmt: skip


def _memory_of_one(
    kinds: list[bytes], honest: list[Captured], random: Random, counts: dict[str, int]
) -> float:
    """The peak of what Python and numpy take, as a part of what the message allows."""
    tracemalloc.start()
    try:
        message = one(kinds, honest, random, counts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / (PER_BYTE * len(message) + BEYOND)


def address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
