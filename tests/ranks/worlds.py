"""Groups of real processes that train together, for test_ranks.py.

Run as a program: it imports everything once and forks each group, since importing takes longer
than all of the training. `python worlds.py FOLDER WORK` leaves what WORK found in FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.utils.tensorboard  # run folders need it, and importing it takes a second
from torch import nn
from torch.nn.utils import parameters_to_vector

import fetchsgd as fs
from fetchsgd.cli import main
from fetchsgd.clients import gathering
from fetchsgd.errors import MachineError, UserError
from fetchsgd.ranks import LostError, Ranks, joined, near
from fetchsgd.ranks.joining import connect
from fetchsgd.tasks import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from dataclasses import replace

from tinytask import tiny


def shaken(seed: int = 0) -> Task:
    """Random changes are drawn for a batch as a whole, and dropout for each example."""

    def augment(inputs, generator):
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator)

    task = tiny(seed)
    return replace(
        task, augment=augment, model=lambda: nn.Sequential(nn.Dropout(0.3), task.model())
    )


def with_adamw(method: str, **more: object) -> dict[str, object]:
    """Local steps. With a large eps: else a last bit of a small gradient makes a whole step."""
    steps = {"steps": 3, "batch_size": 2, "optimizer": "adamw", "state": "keep", "eps": 0.01}
    return {"method": method, "momentum": 0.9, "local": {**steps, "outer_rate": 0.7}, **more}


CENTRAL = {"mode": "central", "noise": 0.5, "quantile": 0.5, "clip": 0.5}
DISTRIBUTED = {"mode": "distributed", "mechanism": "skellam", "noise": 2.0, "clip": 0.5}
MODULAR = {"upload": {"sum": "modular", "sum_bits": 12}}
# Settings that send by each of the ways there are.
WAYS = {
    "one pass": {"method": "fetchsgd", "weight_decay": 0.01},
    "one step": {"method": "uncompressed", "local": {"epochs": 1}, "averaging": "examples"},
    "few bits": {"method": "fetchsgd", "bits": 2},
    "one step for all": {"method": "true_topk", "quantiser": "shared_step"},
    "sums": {"method": "fetchsgd", **MODULAR},
    "weighted sums": {"method": "fedavg", "averaging": "examples", **MODULAR},
    "choosing": {"method": "local_topk"},
    "remembering": {"method": "local_topk", "local_error": True, "local_momentum": 0.5},
    "local batches": {"method": "fedavg", "local": {"epochs": 2, "batch_size": 2}},
    "private": {"method": "fetchsgd", "privacy": {**CENTRAL, "random": "seed"}},
    "private by a secret": {"method": "fetchsgd", "privacy": {**CENTRAL, "random": "secret"}},
    "private sums": {"method": "fetchsgd", "privacy": {**DISTRIBUTED, "random": "seed"}, **MODULAR},
    "shaken": {"task": shaken, "method": "uncompressed"},
    "shaken one by one": {"task": shaken, "method": "local_topk", "averaging": "examples"},
    "local steps": with_adamw("uncompressed", nesterov=True),
    "AdamW, fetchsgd": with_adamw("fetchsgd", nesterov=True),
    "AdamW, fetchsgd, one hash": with_adamw("fetchsgd", hash="fixed"),
    "AdamW, true_topk": with_adamw("true_topk", nesterov=True),
    "AdamW, local_topk": with_adamw("local_topk", nesterov=True, local_error=True),
    "AdamW, fedavg": with_adamw("fedavg", nesterov=True),
    "AdamW, sparse_loco": with_adamw("sparse_loco", quantiser="two_bits"),
}  # fmt: skip
# Those that three processes also do through gloo, as if they were on several machines.
APART = ("one pass", "few bits", "sums")
IN_BLOCKS = ("one pass", "few bits", "local batches", "local steps", "shaken", "shaken one by one")
AGAIN = ("one pass", "few bits", "local steps")
# Five of 12 clients: the last cohort of an epoch leaves one of three processes idle.
ALWAYS = {"clients_per_round": 5, "eval_every": 1.0}


def ways(folder: Path) -> None:
    """Everything above in this process alone, and in three."""
    _train_all(folder, 1, 0)
    codes = world(3, lambda rank: _train_all(folder, 3, rank), folder)
    assert codes == [0, 0, 0], codes
    codes = world(3, lambda rank: _train_apart(folder, rank), folder)
    assert codes == [0, 0, 0], codes


def _train_all(folder: Path, size: int, rank: int) -> None:
    blocks = [(f"{name}, in blocks", WAYS[name]) for name in IN_BLOCKS]
    again = [(f"{name}, again", WAYS[name]) for name in AGAIN]
    _train(folder, size, rank, [*WAYS.items(), *blocks, *again])


def _train_apart(folder: Path, rank: int) -> None:
    near.MOST = 1
    _train(folder, 3, rank, [(f"{name}, apart", WAYS[name]) for name in APART])


def _train(folder: Path, size: int, rank: int, named: list[tuple[str, dict]]) -> None:
    for name, settings in named:
        gathering.MOST_EXAMPLES = 6 if "blocks" in name else 1 << 14
        result = fs.simulate(**{"task": tiny, **ALWAYS, **settings})
        weights = parameters_to_vector(result.model.parameters()).detach()
        lines = [
            {name: value for name, value in line.items() if "seconds" not in name and value}
            for line in result.history
        ]
        torch.save([weights, lines], folder / f"{name}-{size}-{rank}.pt")


LONG = {"task": tiny, "checkpoint_every": 2, "eval_every": 0.5, **WAYS["remembering"]}


def changing(folder: Path) -> None:
    """A run that two processes begin, three go on with, and one ends; and what is refused."""
    out = folder / "changing"

    def train(rank: int, stop: int | None) -> None:
        def progress(seen: fs.Progress) -> None:
            if seen.round == stop:
                (folder / f"stopped-{stop}").touch()
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt, MachineError):
            fs.simulate(folder=out, resume=True, progress=progress, **LONG)
            return
        assert stop is not None

    world(2, lambda rank: train(rank, 4), folder)
    world(3, lambda rank: train(rank, 7), folder)
    world(1, lambda rank: train(rank, None), folder)
    fs.simulate(folder=folder / "whole", **LONG)
    # Processes that are told that a run has ended, and of its result.
    world(2, lambda rank: _resumed(folder, out, rank), folder)
    world(2, lambda rank: _refused(folder, rank), folder)


def _resumed(folder: Path, out: Path, rank: int) -> None:
    result = fs.simulate(folder=out, resume=True, **LONG)
    (folder / f"resumed-{rank}.json").write_text(json.dumps([result.rounds, len(result.history)]))


def _refused(folder: Path, rank: int) -> None:
    """Processes that do not belong together, or no longer."""
    sentences = []
    for settings in (
        {"seed": rank},
        {"diagnose": True},
        {"merge": {"name": "median"}},
        {"task": lambda seed: tiny(seed, 12 + rank)},
    ):
        try:
            fs.simulate(**{"task": tiny, "method": "fetchsgd", **settings})
        except UserError as error:
            sentences.append(str(error))
    with joined() as ranks:
        connect(ranks, torch.device("cpu"))
        try:
            ranks.check_same(torch.full((9,), float(rank)), 7)
        except MachineError as error:
            sentences.append(str(error))
    (folder / f"refused-{rank}.json").write_text(json.dumps(sentences))


def sums(folder: Path) -> None:
    """What processes sum up, on one machine and as if on several; and one that ends too soon."""
    near.PART = 1 << 10  # so that sums come in several parts
    assert world(3, lambda rank: _sum(folder, rank), folder) == [0, 0, 0]
    assert world(3, lambda rank: _cannot_meet(folder, rank), folder) == [0, 0, 0]
    assert world(2, lambda rank: _ends_too_soon(folder, rank), folder) == [0, 0]


def _part_of(rank: int) -> list[torch.Tensor]:
    """What a process has to sum: long and short, floats and whole numbers."""
    generator = torch.Generator().manual_seed(rank)
    floats = torch.randn(3, 1000, generator=generator)
    whole = torch.randint(-(2**40), 2**40, (777,), generator=generator)
    return [floats, whole, floats[0, 0].double(), floats.clone()[:, ::7], floats[:0]]


def _sum(folder: Path, rank: int) -> None:
    with joined() as ranks:
        connect(ranks, torch.device("cpu"))
        found = {"near": bool(ranks.near), "parts": _part_of(rank)}
        found["sums"] = [ranks.sum(part) for part in _part_of(rank)]
        found["both"] = ranks.sum_both(_part_of(rank)[0], torch.tensor(float(rank)))
        found["most"] = [ranks.most(part) for part in _part_of(rank)]
        torch.save(found, folder / f"sums-{rank}.pt")
        ranks.wait_for_all()


def _cannot_meet(folder: Path, rank: int) -> None:
    """The last process is on another machine, or in a container of its own."""
    if rank == 2:
        near.BOOT = folder / "none"
    with joined() as ranks:
        connect(ranks, torch.device("cpu"))
        total = ranks.sum(torch.ones(3))
        torch.save([bool(ranks.near), total], folder / f"apart-{rank}.pt")


def _ends_too_soon(folder: Path, rank: int) -> None:
    with joined() as ranks:
        connect(ranks, torch.device("cpu"))
        ranks.sum(torch.ones(3))
        if rank == 1:
            os._exit(0)
        (folder / "too-soon.txt").write_text(_sentence(ranks))
        os._exit(0)  # there is nobody to leave in order with


def _sentence(ranks: Ranks) -> str:
    try:
        ranks.sum(torch.ones(3))
    except LostError as error:
        return str(error)
    return ""


def commands(folder: Path) -> None:
    """Commands, of which some processes are stopped. What each said, and how it ended."""
    train = ["train", "tinytask:tiny", "--set", "train.checkpoint_every=1"]
    long = [*train, "--epochs", "3000", "--set", "train.eval_every=3000"]
    scenes = [
        ("mistake", [*train, "--set", "method.k=-1"], None),
        ("many", ["sweep", "none.toml", "--out", "none"], None),
        ("diverged", [*train, "--set", "schedule.peak=1e30", "--out", "diverged"], None),
        ("killed", [*long, "--out", "killed"], {1: signal.SIGKILL}),
        ("first killed", [*long, "--out", "first"], {0: signal.SIGKILL}),
        ("stopped", [*long, "--out", "stopped"], dict.fromkeys((0, 1), signal.SIGINT)),
    ]
    found = {}
    for name, words, signals in scenes:
        out = folder / words[-1] if signals else None
        codes = world(2, lambda _, words=words: _command(folder, words), folder, signals, out)
        said = [(folder / f"said-{rank}.txt").read_text() for rank in range(2)]
        found[name] = {"codes": codes, "said": said}
    (folder / "commands.json").write_text(json.dumps(found))


def _command(folder: Path, words: list[str]) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.argv = ["fetchsgd", *words]
    main()


def world(
    size: int,
    work: Callable[[int], None],
    folder: Path,
    signals: dict[int, int] | None = None,
    until: Path | None = None,
) -> list[int]:
    """The exit codes of so many processes; with signals for some once a run has a checkpoint."""
    environment = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": _port()}
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            _be(rank, environment if size > 1 else {}, work, folder)
        children.append(child)
    if until is not None:
        _wait_for(until / "checkpoint.safetensors")
        for rank, number in (signals or {}).items():
            os.kill(children[rank], number)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _be(rank: int, environment: dict[str, str], work: Callable[[int], None], folder: Path) -> None:
    """This process, from now on: a child's life ends here."""
    code = 1
    try:
        os.environ.update(environment)
        if environment:
            os.environ["RANK"] = str(rank)
        with (folder / f"said-{rank}.txt").open("w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        work(rank)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.02)


def _port() -> str:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        works = {"ways": ways, "changing": changing, "sums": sums, "commands": commands}
        works[name](Path(sys.argv[1]))
