"""Fuzz target of the wire format, for atheris (libFuzzer for Python).

    python tests/fuzz/wire_fuzz.py tests/fuzz/corpus -max_total_time=300
    python tests/fuzz/wire_fuzz.py --loops tests/fuzz/corpus -max_total_time=300

Each input is decoded as it is, and again as the sections of a message whose magic, version, length
and checksum are right, so that mutations get past them. Two things must hold: nothing but WireError
is raised, and what can be read is written back to the same bytes. With `--loops` numba compiles
nothing, so that the fuzzer sees the branches inside the loops; it is slower, and numpy then checks
bounds that compiled loops must check themselves.

The folder of the corpus is made if it is missing, and seeded with one message of each format.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

# What numba compiles, atheris cannot instrument.
COMPILED = [
    *(f"fetchsgd.wire.{name}_loops" for name in ("bit", "chunk", "chunk_coder", "rans")),
    "fetchsgd.quantisers.kernels",
]
if "--loops" in sys.argv:
    sys.argv.remove("--loops")
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    COMPILED = []
# Wrapping arithmetic is meant; plain numpy would warn of it.
warnings.filterwarnings("ignore", category=RuntimeWarning)
sys.path.insert(0, str(Path(__file__).parents[1]))

import atheris  # noqa: E402

with atheris.instrument_imports(include=["fetchsgd.wire", "fetchsgd.quantisers"], exclude=COMPILED):
    from chaos.mutations import mended

    import fetchsgd.quantisers  # noqa: F401  (what reads its sections, else imported later)
    from fetchsgd.wire import WireError
    from fetchsgd.wire.codec import parse, write


def check(data: bytes) -> None:
    try:
        payload, choices = parse(data)
    except WireError:
        return
    assert write(payload, choices) == data, "a message was read that is not written like that"


def one_input(data: bytes) -> None:
    check(data)
    check(mended(data))


def seed(folder: Path) -> None:
    from wire.messages import one_of_each

    folder.mkdir(parents=True, exist_ok=True)
    for name, message in one_of_each().items():
        (folder / name).write_bytes(message)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if not argument.startswith("-") and not Path(argument).exists():
            seed(Path(argument))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
