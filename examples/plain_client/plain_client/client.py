"""A client's part in a round (docs/protocol.md, "A round"): update, gradient, message."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plain_client import reading, writing
from plain_client.chunk_writing import steps_section
from plain_client.rounding import rms_step, shared_step, to_bfloat16, to_levels, to_steps
from plain_client.seeds import QUANTISE, round_key
from plain_client.sketching import Sketch, block_of, seed_of_round
from plain_client.weights import Grid, Held, grid_for

# From weights to a gradient, a loss and a number of examples.
Compute = Callable[[np.ndarray], tuple[np.ndarray, float, int]]


@dataclass(frozen=True)
class Agreement:
    """What this client has in common with the server, from its handout."""

    settings: dict
    digest: str
    grid: Grid

    @classmethod
    def read(cls, folder: Path) -> Agreement:
        text, origin = (folder / "settings.json").read_bytes(), (folder / "origin.f32").read_bytes()
        frozen = folder / "frozen.bin"
        everything = text + origin + (frozen.read_bytes() if frozen.exists() else b"")
        settings = json.loads(text)
        if settings["local"]["epochs"] or settings["local"]["clip"]:
            raise ValueError("this client sends one gradient a round, as it is")
        if settings["train"]["weight_decay"]:
            raise ValueError("this client knows no weight decay")
        tensors = json.loads((folder / "tensors.json").read_bytes())
        sizes = [int(np.prod(tensor["shape"])) for tensor in tensors]
        grid = grid_for(settings, np.frombuffer(origin, "<f4").astype(np.float32), sizes)
        return cls(settings, hashlib.sha256(everything).hexdigest()[:32], grid)

    def payload(self, gradient: np.ndarray, client: int, round: int, size: float = 0.0) -> bytes:
        """What the method sends of a gradient, in as few bits as was agreed."""
        sketch = self._sketch(len(gradient), round)
        numbers = gradient if sketch is None else sketch.of(gradient).ravel()
        key = round_key(self.settings["train"]["seed"], QUANTISE, round)
        section = self._section(numbers, key, client, size)
        return writing.message(len(numbers), *section, round, sketch)

    def _section(
        self, numbers: np.ndarray, key: int, client: int, size: float
    ) -> tuple[int, bytes]:
        """Format and bytes of numbers in as few bits as was agreed."""
        upload = self.settings["upload"]
        kind = upload["quantiser"]
        if kind == "bits" and upload["bits"] in (32, 16):
            exact = upload["bits"] == 32
            rounded = numbers if exact else to_bfloat16(numbers, key, client)
            return writing.floats_section(rounded, upload["bits"])
        if kind == "bits":
            return writing.levels_section(to_levels(numbers, upload["bits"], key, client))
        if kind not in ("step", "shared_step") or upload["bytes"]:
            raise ValueError(f"this client does not know upload = {upload}")
        if kind == "step":
            step = rms_step(numbers, upload["tau"])
        else:
            step = shared_step(numbers, upload["density"], size)
        return steps_section(to_steps(numbers, step, key, client))

    def _sketch(self, dim: int, round: int) -> Sketch | None:
        method = self.settings["method"]
        if method["name"] in ("uncompressed", "true_topk"):
            return None
        if method["name"] != "fetchsgd":
            raise ValueError(f"this client does not know method.name = {method['name']!r}")
        fresh = method["hash"] == "fresh"
        block = method["block"] or block_of(method["cols"], fresh)
        seed = method["sketch_seed"]
        seed = seed_of_round(seed, round) if fresh else seed
        return Sketch(dim, method["rows"], method["cols"], block, seed, permuted=fresh)


@dataclass(frozen=True)
class Kept:
    """What a client keeps between rounds; versions are those of one run, its lineage."""

    lineage: str
    held: Held


def answer(
    agreed: Agreement, work: dict, client: int, kept: Kept | None, compute: Compute
) -> tuple[str, dict, Kept | None]:
    """The kind and the fields of the reply, and what to keep from then on."""
    if work["digest"] != agreed.digest:
        raise ValueError("the server has other settings or initial weights than the handout")
    about = {key: work[key] for key in ("digest", "lineage", "round")} | {"client": client}
    held = kept.held if kept is not None and kept.lineage == work["lineage"] else None
    update = reading.read(work["payload"])
    if not agreed.grid.fits(held, update):
        return "asks", about | {"held": 0 if held is None else held.version}, kept
    held = agreed.grid.receive(held, update)
    weights = agreed.grid.weights(held)
    if checksum(weights) != work["checksum"]:
        if update["since"] == 0:
            raise ValueError(
                "weights made from the handout and a whole update are not the server's"
            )
        return "asks", about | {"held": 0}, None
    gradient, loss, examples = compute(weights)
    payload = agreed.payload(gradient, client, work["round"], work["size"])
    reply = about | {"examples": examples, "loss": loss, "payload": payload}
    return "answer", reply, Kept(work["lineage"], held)


def checksum(weights: np.ndarray) -> int:
    return zlib.crc32(weights.astype("<f4").tobytes())
