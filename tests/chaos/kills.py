"""Campaign "kill": simulator, server and clients die at random moments, and training goes on.

Promised: final weights, and everything else that a checkpoint holds, are those of the run that was
never interrupted, to the bit; no round is applied twice or left out; every round has the replies of
all its clients. tests/flower does the same to Flower's own processes, a few times.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.utils.tensorboard  # a fork that had to import it would take seconds
from chaos.forks import Death, Writes, drawn, fork, outcome
from chaos.served import Clients, serve
from safetensors.torch import load_file

from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

DEATHS = 5  # in one folder; the next process goes on to the end
APART = ("seconds", "name", "config", "versions", "commit", "hardware", "federation")
OF_ONE_SERVER = ("ledger.",)
TRAFFIC = re.compile("bytes|compression")

Start = Callable[[Path], None]


def simulate(method: str) -> Start:
    def start(out: Path) -> None:
        sets = ("checkpoint_every=2", "eval_every=1", "download.grid=steps")
        config = resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets)
        torch.set_num_threads(1)
        Run(config).execute(out, resume=True)

    return start


def uninterrupted(start: Start, out: Path) -> tuple[int, float]:
    """Run it once, with its number of writes and its seconds."""
    tally = out.with_name(f"{out.name}.writes")

    def counted() -> None:
        writes = Writes(None)
        writes.watch()
        start(out)
        tally.write_text(str(writes.count))

    began = time.monotonic()
    assert outcome(fork(counted, log=out.with_name("whole.log"))) == "done", _log(out, "whole")
    return int(tally.read_text()), time.monotonic() - began


def _log(out: Path, name: str) -> str:
    return out.with_name(f"{name}.log").read_text()[-3000:]


def until_done(start: Start, out: Path, deaths: list[Death]) -> list[str]:
    """Start it again and again, a death each, and then once more; says how each ended."""
    found = []
    for death in [*deaths, None]:
        child = fork(lambda: start(out), death, out.with_name("again.log"))
        found.append(outcome(child, death))
        assert found[-1] in ("done", "killed"), f"{death}, {found[-1]}: {_log(out, 'again')}"
    assert found[-1] == "done"
    return found


def same_as(whole: Path, cut: Path, traffic: bool = True) -> None:
    """Equal to the bit: the tensors of the checkpoint, the result, and the rounds that were logged.

    traffic: whether bytes are equal, too. A client that is asked again is sent less or more.
    """
    expected, found = load_file(whole / FILE), load_file(cut / FILE)
    assert expected.keys() == found.keys()
    for name in expected:
        if traffic or not name.startswith(OF_ONE_SERVER):
            assert torch.equal(expected[name], found[name]), name
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, cut)]
    for key in results[0]:
        if key not in APART and (traffic or not TRAFFIC.search(key)):
            assert results[0][key] == results[1][key], key
    rounds = [[line["round"] for line in _lines(folder)] for folder in (whole, cut)]
    assert rounds[0] == rounds[1], rounds


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _moments(deaths: list[Death], outcomes: list[str]) -> list[str]:
    """Of those who died; others had come to their end before."""
    pairs = zip(deaths, outcomes, strict=False)
    return [death.stage or "any time" for death, ended in pairs if ended == "killed"]


def _report(who: str, seed: int, stages: Counter[str]) -> dict[str, Any]:
    about = {"campaign": f"kill {who}", "seed": seed, "kills": stages.total()}
    return about | {"at": dict(stages), "identical": True}


def simulator(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """Deaths of `fetchsgd.simulate`'s process."""
    random = Random(f"kill simulator {seed}")
    stages: Counter[str] = Counter()
    wholes = {}
    while stages.total() < kills:
        method = random.choice(("fetchsgd", "local_topk", "true_topk"))
        start, whole = simulate(method), folder / method / "whole"
        if method not in wholes:
            whole.parent.mkdir()
            wholes[method] = uninterrupted(start, whole)
        deaths = [drawn(random, *wholes[method]) for _ in range(min(DEATHS, kills))]
        cut = folder / method / "cut"
        outcomes = until_done(start, cut, deaths)
        stages.update(_moments(deaths, outcomes))
        same_as(whole, cut)
        shutil.rmtree(cut)
    return _report("simulator", seed, stages)


def server(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """Deaths of a federation's server; clients and what they hold live on."""
    return _federation(seed, kills, folder, "server")


def clients(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """Deaths of clients, in work and in greetings; some lose what they held."""
    return _federation(seed, kills, folder, "clients")


def _federation(seed: int, kills: int, folder: Path, who: str) -> dict[str, Any]:
    random = Random(f"kill {who} {seed}")
    (folder / who).mkdir(parents=True)
    whole, calm = folder / who / "whole", Clients(folder / who / "calm")
    with serve(calm) as address:
        measured = uninterrupted(calm.server(address), whole)
    stages: Counter[str] = Counter()
    while stages.total() < kills:
        cut, mortal = folder / who / "cut", random.randrange(2**32) if who == "clients" else None
        troubled = Clients(folder / who / "troubled", mortal)
        with serve(troubled) as address:
            start = troubled.server(address)
            if who == "server":
                deaths = [drawn(random, *measured) for _ in range(min(DEATHS, kills))]
                outcomes = until_done(start, cut, deaths)
                stages.update(_moments(deaths, outcomes))
            else:
                until_done(start, cut, [])
        if who == "clients":
            stages.update(troubled.told())
        same_as(whole, cut, traffic=False)
        every_reply_counted(cut)
        for path in (cut, troubled.folder):
            shutil.rmtree(path)
    return _report(who, seed, stages)


def every_reply_counted(folder: Path) -> None:
    """In every round the replies of all clients, each once."""
    counted = [line["federation/replies"] for line in _lines(folder)]
    each = counted[0]
    assert counted == [each * (n + 1) for n in range(len(counted))], counted
