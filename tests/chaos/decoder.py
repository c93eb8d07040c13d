"""The decoder alone under hostile messages; needs no Flower.

python tests/chaos/decoder.py --seed 3 --count 100000 --seconds 30
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.bounds import within_bounds
from chaos.mutations import mutated
from wire.messages import one_of_each

import fetchsgd.quantisers  # noqa: F401  (what reads its sections)
from fetchsgd.wire import WireError
from fetchsgd.wire.codec import parse, write


def decoded(message: bytes) -> bool:
    """Whether the decoder takes it; it must then write it back as it was."""
    try:
        found = parse(message)
    except WireError:
        return False
    assert write(*found) == message, "a message was read that is not written like that"
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    kinds, random = list(one_of_each().values()), Random(f"decoder {given.seed}")
    assert all(map(decoded, kinds))  # numba compiles
    counts: Counter[str] = Counter()

    def one() -> tuple[bytes, Callable[[], bool]]:
        message = mutated(kinds, random)
        try:
            counts["read"] += decoded(message)
        except Exception as error:
            error.add_note(message.hex())
            raise
        return message, lambda: decoded(message)

    worst = within_bounds(one, given.count, given.seconds)
    found = {"campaign": "decoder", "seed": given.seed, "messages": worst.messages, **counts}
    found |= {"slowest_ms": round(1000 * worst.seconds, 2), "memory_of_bound": worst.memory}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
