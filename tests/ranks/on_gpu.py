"""One run by a process alone, by one of a group over NCCL, and by two that share a GPU over gloo.

    python tests/ranks/on_gpu.py        # prints what was found, and fails if runs differ

NCCL takes one process a GPU; so with one GPU its group has one member, whose sums go through NCCL
all the same. `--device cpu` tries the program itself, over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).parents[1]))
from tinytask import tiny

import fetchsgd as fs

WAYS: dict[str, dict[str, Any]] = {
    "one pass": {"method": "fetchsgd"},
    "few bits": {"method": "fetchsgd", "bits": 2},
    "sums": {"method": "fetchsgd", "upload": {"sum": "modular", "sum_bits": 12}},
    "remembering": {"method": "local_topk", "local_error": True, "local_momentum": 0.5},
    "local steps": {
        "method": "uncompressed", "nesterov": True,
        "local": {
            "steps": 5, "batch_size": 2, "optimizer": "adamw", "state": "keep", "outer_rate": 0.7,
        },
    },
}  # fmt: skip


def work(out: Path, device: str) -> None:
    """Train by every way, in a group if there is one."""
    seen: list[str] = []
    really = dist.all_reduce

    def counted(tensor: torch.Tensor, *arguments: Any) -> Any:
        seen.append(f"{dist.get_backend_config()} {tensor.device.type}")
        return really(tensor, *arguments)

    dist.all_reduce = counted
    found = {}
    for name, settings in WAYS.items():
        result = fs.simulate(tiny, clients_per_round=4, device=device, dtype="float32", **settings)
        weights = parameters_to_vector(result.model.parameters()).detach().cpu()
        found[name] = {"weights": weights.tolist(), "sums": sorted(set(seen)), "count": len(seen)}
        seen.clear()
    out.write_text(json.dumps(found))


def group(size: int, folder: Path, device: str) -> list[dict[str, Any]]:
    """What each of so many processes found; 0 is one process without a group."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = []
    for rank in range(max(size, 1)):
        own = world | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
        words = ["--work", str(folder / f"{size}-{rank}.json"), "--device", device]
        command = [sys.executable, __file__, *words]
        started.append(subprocess.Popen(command, env=os.environ | (own if size else {})))
    codes = [process.wait(timeout=300) for process in started]
    assert codes == [0] * len(codes), codes
    files = [folder / f"{size}-{rank}.json" for rank in range(len(started))]
    return [json.loads(file.read_text()) for file in files]


def compare(device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        [alone], [one], two = (group(size, Path(folder), device) for size in (0, 1, 2))
    expected = "cuda:nccl" if device == "cuda" else "cpu:gloo"
    for name in WAYS:
        assert alone[name]["count"] == 0
        assert one[name]["count"] > 0
        by_one, by_two = one[name]["sums"], two[0][name]["sums"]
        assert all(expected in sums and sums.endswith(device) for sums in by_one), by_one
        assert all("nccl" not in sums for sums in by_two), by_two
        vectors = [torch.tensor(found[name]["weights"]) for found in (alone, one, *two)]
        assert torch.equal(vectors[2], vectors[3])
        torch.testing.assert_close(vectors[1], vectors[0], rtol=1e-4, atol=1e-5)
        # AdamW divides by the size of gradients, so the rounding of small ones becomes large.
        atol = 5e-3 if name == "local steps" and device == "cuda" else 1e-5
        torch.testing.assert_close(vectors[2], vectors[0], rtol=1e-4, atol=atol)
        line = {
            "way": name, "one process sums by": by_one, "sums": one[name]["count"],
            "two sum by": by_two, "one: equal to the bit": torch.equal(vectors[1], vectors[0]),
            "two: largest difference": float((vectors[2] - vectors[0]).abs().max()),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    if given.work is None:
        compare(given.device)
    else:
        torch.set_num_threads(1)
        work(given.work, given.device)
