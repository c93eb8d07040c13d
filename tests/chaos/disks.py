"""Campaign "disk": full and read-only disks, files that are cut or changed, writes that take long.

Promised: a sentence that names the file, never a state that nobody saved; what was saved last stays
whole, and when the disk is well again the run goes on from there to the same weights. Disks are
small ones in memory, mounted where only the process sees them that trains there: this needs root.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from chaos.forks import fork, outcome
from chaos.kills import simulate
from fetchsgd.errors import UserError
from fetchsgd.flower.client_state import InFolder
from fetchsgd.runs.checkpoint import FILE, load_checkpoint, parts_of
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from flower.federations import federation, train

NEW_NAMESPACE, READ_ONLY, REMOUNT, PRIVATE = 0x20000, 1, 32, 0x44000
PAGE = 4096

Start = Callable[[Path], None]


def federate(out: Path) -> None:
    """Server and clients in this process."""
    torch.set_num_threads(1)
    train(federation(out, settings="download.grid=steps"))


STARTS: dict[str, Start] = {"simulator": simulate("fetchsgd"), "server": federate}


def mount(folder: Path, size: int, flags: int = 0) -> None:
    """A disk in memory; again with REMOUNT, of another size or read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not flags & REMOUNT:
        folder.mkdir(parents=True)
        assert libc.unshare(NEW_NAMESPACE) == 0, os.strerror(ctypes.get_errno())
        assert libc.mount(b"none", b"/", None, PRIVATE, None) == 0
    done = libc.mount(b"chaos", str(folder).encode(), b"tmpfs", flags, f"size={size}".encode())
    assert done == 0, os.strerror(ctypes.get_errno())


def complains(start: Start, out: Path) -> str:
    """The sentence with which it ends, or nothing where it comes to its end."""
    try:
        start(out)
    except UserError as error:
        assert str(out) in str(error), f"a sentence that names no file: {error}"
        return str(error)
    return ""


def full(start: Start, folder: Path, size: int, whole: dict[str, torch.Tensor]) -> None:
    """A disk that is full at some moment, and has room again."""
    mount(folder, size)
    out = folder / "run"
    print("said:", complains(start, out) or "nothing")
    _is_whole(out)
    mount(folder, 64 << 20, REMOUNT)
    start(out)
    _same(out, whole)


def read_only(start: Start, folder: Path, size: int, whole: dict[str, torch.Tensor]) -> None:
    """What a run finds when it is started or resumed."""
    mount(folder, size)
    out = folder / "run"
    print("said:", complains(start, out) or "nothing")  # it may be full, too
    mount(folder, size, REMOUNT | READ_ONLY)
    (said := complains(start, out)) or (out / "result.json").exists() or _fail("no sentence")
    print("said:", said)
    _is_whole(out)
    mount(folder, 64 << 20, REMOUNT)
    start(out)
    _same(out, whole)


def slow(start: Start, folder: Path, size: int, whole: dict[str, torch.Tensor]) -> None:
    """Every write takes its time."""
    del size
    real = os.fsync

    def fsync(descriptor: int) -> None:
        time.sleep(0.03)
        real(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    start(folder / "run")
    _same(folder / "run", whole)


TROUBLES = {"full": full, "read-only": read_only, "slow": slow}


def _fail(why: str) -> None:
    raise AssertionError(why)


def _is_whole(out: Path) -> None:
    """Whatever was saved last can be read."""
    if (out / FILE).exists():
        assert load_file(out / FILE)


def _same(out: Path, whole: dict[str, torch.Tensor]) -> None:
    found = load_file(out / FILE)
    for name in ("weights", "steps"):
        assert torch.equal(found[name], whole[name]), name


def disks(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """So many troubles, each with a disk of its own."""
    random = Random(f"disk {seed}")
    wholes, sizes = {}, {}
    for name, start in STARTS.items():
        out = folder / name / "whole"
        out.parent.mkdir()
        child = fork(lambda start=start, out=out: start(out), log=out.with_name("log"))
        assert outcome(child) == "done", out.with_name("log").read_text()[-3000:]
        wholes[name] = load_file(out / FILE)
        pages = sum(-(-path.stat().st_size // PAGE) for path in out.iterdir())
        sizes[name] = pages + 4
    done: Counter[str] = Counter()
    for number in range(count):
        name = random.choice(list(STARTS))
        trouble = random.choices(list(TROUBLES), (6, 3, 1))[0]
        size = PAGE * random.randrange(2, sizes[name])
        place, log = folder / f"disk-{number}", folder / f"disk-{number}.log"
        work = TROUBLES[trouble]
        child = fork(
            lambda w=work, n=name, p=place, s=size: w(STARTS[n], p, s, wholes[n]), log=log
        )
        found = outcome(child)
        assert found == "done", f"{trouble} disk of {size} bytes, {name}: {log.read_text()[-3000:]}"
        if "said: cannot" in log.read_text():
            done["sentences"] += 1
        done[f"{trouble}, {name}"] += 1
        shutil.rmtree(place, ignore_errors=True)
    return {"campaign": "disk", "seed": seed, "troubles": count, **done}


def damage(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """A checkpoint and what a client keeps, cut off or changed at any byte.

    count: how many places of each are tried; 0 for every byte.
    """
    logging.getLogger("flwr.fetchsgd").setLevel(logging.ERROR)
    random = Random(f"damage {seed}")
    config = resolve(
        {"task": {"name": "tinytask:tiny"}, "method": {"name": "local_topk"}},
        ("checkpoint_every=2", "download.grid=steps"),
    )
    run = Run(config)
    run.execute(folder / "run")
    train(federation(folder / "federation"))  # what it leaves is not used; clients' files are
    path = folder / "run" / FILE
    downloads, device = run.setup.grid.downloads(), torch.device("cpu")

    def load() -> dict[str, torch.Tensor] | None:
        try:
            found = load_checkpoint(folder / "run", run.start(), downloads, device)
        except UserError as error:
            assert str(folder / "run") in str(error)
            return None
        assert found is not None
        return dict(parts_of(found.training)) | {"seconds": torch.tensor(found.seconds)}

    keeper = _kept(folder / "state")

    def load_client() -> dict[str, torch.Tensor] | None:
        found, about = keeper.load(), keeper.about()
        if found is None:
            return None
        assert tuple(about) == (found.lineage, found.version)
        vectors = {name: torch.from_numpy(v.copy()) for name, v in found.vectors.items()}
        return vectors | {f"{found.lineage} {found.version}": torch.zeros(1)}

    counts: Counter[str] = Counter()
    _damaged(path, load, random, count, counts, "checkpoint")
    _damaged(keeper.path, load_client, random, count, counts, "client")
    return {"campaign": "damage", "seed": seed, **counts}


def _kept(folder: Path) -> InFolder:
    from fetchsgd.exchange.client_state import ClientState

    keeper = InFolder(folder, 3)
    vectors = {"weights": np.arange(40, dtype=np.float32), "memory": np.ones(40, np.float32)}
    keeper.save(ClientState("0123456789abcdef", 12, vectors))
    return keeper


def _damaged(
    path: Path,
    load: Callable[[], dict[str, torch.Tensor] | None],
    random: Random,
    count: int,
    counts: Counter[str],
    what: str,
) -> None:
    """Either a sentence, or exactly what was saved."""
    content, whole = path.read_bytes(), load()
    assert whole is not None
    places = range(len(content))
    for at in random.sample(places, count) if 0 < count < len(places) else places:
        flipped = bytearray(content)
        flipped[at] ^= 1 << random.randrange(8)
        for way, damaged in (("cut", content[:at]), ("flipped", bytes(flipped))):
            path.write_bytes(damaged)
            found = load()
            if found is None:
                counts[f"{what} {way}, refused"] += 1
                continue
            same = found.keys() == whole.keys() and all(
                torch.equal(found[name], whole[name]) for name in whole
            )
            assert same, f"{path.name} {way} at byte {at} of {len(content)} is read as another"
            counts[f"{what} {way}, read as it was saved"] += 1
    path.write_bytes(content)
