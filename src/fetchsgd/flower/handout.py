"""What a client in another language is given before a run: what it must have in common with ours.

    python -m fetchsgd.flower.handout examples/plain_client --out handout

    settings.json   the settings that count, in just the bytes that the digest begins with
    origin.f32      the initial weights, float32, little-endian
    frozen.bin      what the model has and does not train; only where there is any
    tensors.json    name and shape of each tensor of the model, in the order of the weights

Ours need none of it: they make it from the app's settings. The digest of the first three files is
in every message (docs/protocol.md), so a client that was given those of another run notices.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from flwr.common.config import get_fused_config_from_dir, parse_config_args

from fetchsgd.errors import UserError
from fetchsgd.exchange.agreement import agreed_settings, as_bytes, digest, frozen
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.files import write_atomically
from fetchsgd.runs.setup import Setup


def write_handout(setup: Setup, out: Path) -> str:
    """The files; returns the digest."""
    shapes = zip(setup.model.names, setup.model.shapes, strict=True)
    tensors = [{"name": name, "shape": list(shape)} for name, shape in shapes]
    files = {
        "settings.json": agreed_settings(setup),
        "origin.f32": as_bytes(setup.origin),
        "frozen.bin": frozen(setup),
        "tensors.json": json.dumps(tensors).encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if data:
            write_atomically(out / name, data)
    return digest(setup)


def setup_of(app: Path, run_config: list[str]) -> Setup:
    """The run that `flwr run` with the same words would start."""
    given = get_fused_config_from_dir(app, parse_config_args(run_config))
    sys.path.insert(0, str(app.resolve()))  # its task may be a module of its own
    config, federation = read_settings(given)
    return Setup(config, federation.clients)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fetchsgd.flower.handout", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("app", type=Path, help="the folder of the Flower app")
    parser.add_argument("--out", type=Path, default=Path("handout"))
    parser.add_argument("--run-config", action="append", default=[], help="as for `flwr run`")
    given = parser.parse_args()
    try:
        found = write_handout(setup_of(given.app, given.run_config), given.out)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{given.out} is written; its digest is {found}")


if __name__ == "__main__":
    main()
