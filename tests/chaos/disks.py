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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from chaos.forks import fork, outcome
from chaos.kills import simulate
from flower.federations import federation, train
from safetensors.torch import load_file

from fetchsgd.errors import UserError
from fetchsgd.exchange.client_state import ClientState
from fetchsgd.flower.client_state import InFolder
from fetchsgd.runs.checkpoint import FILE, load_checkpoint, parts_of
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

NEW_NAMESPACE, READ_ONLY, REMOUNT, PRIVATE = 0x20000, 1, 32, 0x44000
PAGE = 4096

Start = Callable[[Path], None]
Saved = dict[str, torch.Tensor]


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
    said = ""
    try:
        start(out)
    except UserError as error:
        said = str(error)
    assert not said or str(out) in said, f"a sentence that names no file: {said}"
    return said


def full(start: Start, folder: Path, size: int, whole: Saved) -> None:
    """A disk that is full at some moment, and has room again."""
    mount(folder, size)
    out = folder / "run"
    print("said:", complains(start, out) or "nothing")
    _is_whole(out)
    mount(folder, 64 << 20, REMOUNT)
    start(out)
    _same(out, whole)


def read_only(start: Start, folder: Path, size: int, whole: Saved) -> None:
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


def slow(start: Start, folder: Path, size: int, whole: Saved) -> None:
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


def _same(out: Path, whole: Saved) -> None:
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
        child = fork(lambda w=work, n=name, p=place, s=size: w(STARTS[n], p, s, wholes[n]), log=log)
        found = outcome(child)
        assert found == "done", f"{trouble} disk of {size} bytes, {name}: {log.read_text()[-3000:]}"
        if "said: cannot" in log.read_text():
            done["sentences"] += 1
        done[f"{trouble}, {name}"] += 1
        shutil.rmtree(place, ignore_errors=True)
    return {"campaign": "disk", "seed": seed, "troubles": count, **done}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without thousands of warnings that a file is lost."""
    log = logging.getLogger("flwr.fetchsgd")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def damage(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """A checkpoint and what a client keeps, cut off or changed at any byte.

    count: how many places of each are tried; 0 for every byte.
    """
    random, counts = Random(f"damage {seed}"), Counter[str]()
    run, keeper = _finished(folder / "run"), _kept(folder / "state")
    with _quiet():
        _damaged(folder / "run" / FILE, lambda: _saved(run, folder / "run"), random, count, counts)
        _damaged(keeper.path, lambda: _held(keeper), random, count, counts)
    return {"campaign": "damage", "seed": seed, **counts}


def _finished(out: Path) -> Run:
    settings = {"task": {"name": "tinytask:tiny"}, "method": {"name": "local_topk"}}
    run = Run(resolve(settings, ("checkpoint_every=2", "download.grid=steps")))
    run.execute(out)
    return run


def _saved(run: Run, out: Path) -> Saved | None:
    """All that the checkpoint holds, or None where a sentence refuses it."""
    said = ""
    try:
        found = load_checkpoint(out, run.start(), run.setup.grid.downloads(), torch.device("cpu"))
    except UserError as error:
        said = str(error)
    if said:
        assert str(out) in said, f"a sentence that names no file: {said}"
        return None
    assert found is not None
    return dict(parts_of(found.training)) | {"seconds": torch.tensor(found.seconds)}


def _held(keeper: InFolder) -> Saved | None:
    """All that a client has kept, or None where it counts as lost."""
    found, about = keeper.load(), keeper.about()
    if found is None:
        return None
    assert tuple(about) == (found.lineage, found.version)
    vectors = {name: torch.from_numpy(vector.copy()) for name, vector in found.vectors.items()}
    return vectors | {f"{found.lineage} {found.version}": torch.zeros(1)}


def _kept(folder: Path) -> InFolder:
    keeper = InFolder(folder, 3)
    vectors = {"weights": np.arange(40, dtype=np.float32), "memory": np.ones(40, np.float32)}
    keeper.save(ClientState("0123456789abcdef", 12, vectors))
    return keeper


def _damaged(
    path: Path,
    load: Callable[[], Saved | None],
    random: Random,
    count: int,
    counts: Counter[str],
) -> None:
    """Either a sentence, or exactly what was saved."""
    content, whole, what = path.read_bytes(), load(), path.name.split("-")[0].split(".")[0]
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
