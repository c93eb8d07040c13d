"""Campaigns "kill-flower" and "kill-secure": SIGKILL of Flower's own processes, at any moment.

SuperLink, ServerApp, SuperNodes and ClientApps are real processes, and several may die at once.
Whoever dies is started again as an operator would do it: the SuperLink on its port, the run by the
same command, a SuperNode with the same configuration; its folder may be lost. SuperNodes are under
a supervisor, which starts them again when they end by themselves. Promised: as in kills.py, to the
bit.

With secure aggregation all clients are needed for a sum, so a round is done again until they are
all in it. Folders are kept there: what a client has signed must outlast its processes.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from chaos.kills import every_reply_counted, same_as
from flower.fakegrid import FakeGrid
from flower.federations import train
from flower.real import APP, ENVIRONMENT

from fetchsgd.flower.keys import make_identities
from fetchsgd.flower.processes import Federation, send, words

LONGEST_ROUND = 180.0  # seconds, from the start of a server
END = 900.0  # seconds from the last death to the end of a run
# How likely each dies when something does: often several do, as in a power cut.
SERVERS, A_NODE, CLIENTAPP = {"superlink": 0.5, "serverapp": 0.5}, 0.4, {"clientapp": 0.2}
NOT_YET = "Connection to the SuperLink is unavailable"  # it listens before it answers
FOLDER, ENDED = "a node's folder", "a node ended by itself"  # no deaths by our hand
SUBMITTED = "Successfully started run"  # from then on only its log can be lost
# Flower starts a ServerApp again that died before it had begun: then two serve, and one refuses.
BUSY, BUSY_PAUSE = "is training in", 10.0


@dataclass(frozen=True)
class Open:
    """A federation whose server sees every reply. folder: where keys and states are."""

    folder: Path
    name = "kill flower"
    nodes = ("node0", "node1")
    rounds = 6.0
    deadline = 40.0
    folders_may_be_lost = True
    more = "upload.bits=8"

    def settings(self, out: Path) -> dict[str, Any]:
        """A round waits for everybody, for a long time if need be."""
        num = len(self.nodes)
        return {
            "task.name": "tinytask:tiny", "federation.out": str(out), "federation.clients": num,
            "train.clients_per_round": num, "federation.min_replies": num,
            "train.epochs": self.rounds, "federation.deadline": self.deadline,
            "federation.wait": 300.0,
            "settings": f"download.grid=steps federation.attempts=50 {self.more}",
        }  # fmt: skip

    def state(self, name: str) -> Path:
        return self.folder / "states" / name

    def node_config(self, name: str) -> dict[str, Any]:
        return {"partition-id": int(name[-1]), "state": str(self.state(name))}

    def begin(self) -> None:
        """Keys, where there are any."""

    def undisturbed(self, out: Path) -> None:
        """The same without processes."""
        grid = FakeGrid(self.settings(out))
        for name in self.nodes:
            grid.add(int(name[-1]), config=self.node_config(name))
        train(grid)


@dataclass(frozen=True)
class Secret(Open):
    """One with secure aggregation."""

    name = "kill secure"
    nodes = ("node0", "node1", "node2")
    rounds = 3.0
    deadline = 120.0  # seconds; who dies and comes back is asked again at once
    folders_may_be_lost = False

    @property
    def more(self) -> str:
        return (
            "upload.sum=modular upload.secure=true "
            f"federation.phase_deadline={self.deadline:g} "
            f"federation.directory={self.folder / 'keys' / 'directory.json'}"
        )

    def node_config(self, name: str) -> dict[str, Any]:
        keys = self.folder / "keys"
        own = {
            "identity": str(keys / f"client-{name[-1]}"), "directory": str(keys / "directory.json"),
        }  # fmt: skip
        return super().node_config(name) | own

    def begin(self) -> None:
        make_identities(self.folder / "keys", len(self.nodes))


@dataclass
class Mortals:
    """A federation whose processes die and are started again until the run has ended."""

    flower: Federation
    kind: Open
    out: Path
    random: Random
    deaths: Counter[str] = field(default_factory=Counter)
    runs: int = 0

    def start(self) -> None:
        for name in self.kind.nodes:
            self._start_node(name)
        self._start_run()

    def _start_node(self, name: str) -> None:
        pairs = self.kind.node_config(name).items()
        config = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in pairs)
        self.flower.start_node(name, config)

    def _start_run(self) -> None:
        self.runs += 1
        self.flower.start_run(APP, self.kind.settings(self.out), self.run_name)

    @property
    def run_name(self) -> str:
        return f"run{self.runs}"

    @property
    def has_ended(self) -> bool:
        return (self.out / "result.json").exists()

    @property
    def moment(self) -> str:
        """What the server is about."""
        log = self.flower.log(self.run_name)
        return "in a round" if "clients are connected" in log else "starting and greeting"

    def live(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Until the time is up or the run has ended; a run that fails by itself is a mistake."""
        end = time.monotonic() + seconds
        while not self.has_ended and not until() and time.monotonic() < end:
            time.sleep(0.1)
            self._supervise()
            process, log = self.flower.processes[self.run_name], self.flower.log(self.run_name)
            if process.poll() is None or self.has_ended:
                continue
            assert NOT_YET in log or BUSY in log, f"the run has ended: {self.told()}"
            if BUSY in log:
                time.sleep(BUSY_PAUSE)
            if not self.has_ended and (BUSY in log or SUBMITTED not in log):
                self._start_run()

    def _supervise(self) -> None:
        """A SuperNode may end by itself when its SuperLink was killed while they talked."""
        for name in self.kind.nodes:
            if self.flower.processes[name].poll() is not None:
                self.deaths[ENDED] += 1
                self._start_node(name)

    def told(self) -> str:
        """The ends of all logs, and who has ended."""
        return "\n\n".join(
            f"{name} ({'runs' if process.poll() is None else process.poll()}): "
            f"{self.flower.log(name)[-3000:]}"
            for name, process in self.flower.processes.items()
        )

    def live_on(self) -> None:
        """For a moment, for some time, or into the next round, however long that takes here."""
        shortest, longest = self.random.choice(((0, 8), (8, 40), (0, 20)))
        if longest == 20:
            rounds = self._rounds
            self.live(LONGEST_ROUND, until=lambda: self._rounds > rounds)
        self.live(self.random.uniform(shortest, longest))

    @property
    def _rounds(self) -> int:
        path = self.out / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def strike(self) -> None:
        """Somebody dies, and comes back at once or in a while."""
        chances = SERVERS | dict.fromkeys(self.kind.nodes, A_NODE) | CLIENTAPP
        chosen = [name for name, chance in chances.items() if self.random.random() < chance]
        chosen = chosen or [self.random.choice(list(chances))]
        moment, run = self.moment, self.run_name
        died = [name for name in chosen if self._kill(name)]
        self.deaths.update(f"{name.rstrip('012')}, {moment}" for name in died)
        if "superlink" in died:
            self.flower.start_superlink()
        for name in sorted(set(died) & set(self.kind.nodes), key=lambda _: self.random.random()):
            time.sleep(self.random.choice((0.0, self.random.uniform(0, 5))))
            self._start_node(name)
        if "superlink" in died or "serverapp" in died:
            self.flower.kill(run)
            self._start_run()

    def _kill(self, name: str) -> bool:
        """Whether there was such a process."""
        if name == "serverapp":
            return self.flower.kill_server()
        if name == "clientapp":
            found = [
                pid for pid in self.flower.pids(*self.kind.nodes) if "flwr-clientapp" in words(pid)
            ]
            send(signal.SIGKILL, found[:1])
            return bool(found)
        if name == "superlink" and self._orphans():
            self.deaths["serverapp, with its superlink"] += 1
        self.flower.kill(name)
        may_go = name in self.kind.nodes and self.kind.folders_may_be_lost
        if may_go and self.random.random() < 0.3:
            shutil.rmtree(self.kind.state(name), ignore_errors=True)
            self.deaths[FOLDER] += 1
        return True

    def _orphans(self) -> bool:
        """Sometimes a ServerApp outlives its SuperLink for a while; whether there is one."""
        found = [p for p in self.flower.pids("superlink") if "flwr-serverapp" in words(p)]
        if self.random.random() < 0.3:
            self.flower.processes["superlink"].kill()
            time.sleep(self.random.uniform(0, 5))
        return bool(found)


def campaign(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """At least so many deaths of processes, over as many runs as that takes."""
    return _campaign(Open, seed, kills, folder)


def secure_campaign(seed: int, kills: int, folder: Path) -> dict[str, Any]:
    """The same with secure aggregation."""
    return _campaign(Secret, seed, kills, folder)


def _campaign(make: type[Open], seed: int, kills: int, folder: Path) -> dict[str, Any]:
    random = Random(f"{make.name} {seed}")
    calm, whole = make(folder / "calm"), folder / "whole"
    calm.begin()
    calm.undisturbed(whole)
    deaths: Counter[str] = Counter()
    runs = servers = 0
    while _processes(deaths) < kills:
        place = folder / f"troubled-{runs}"
        kind = make(place)
        kind.begin()
        with Federation(place / "flower", ENVIRONMENT) as flower:
            mortals = Mortals(flower, kind, place / "run", random)
            mortals.start()
            while not mortals.has_ended and _processes(deaths + mortals.deaths) < kills:
                mortals.live_on()
                if not mortals.has_ended:
                    mortals.strike()
            mortals.live(END)
            assert mortals.has_ended, mortals.told()
        same_as(whole, place / "run", traffic=False)
        every_reply_counted(place / "run")
        deaths.update(mortals.deaths)
        runs, servers = runs + 1, servers + mortals.runs
        shutil.rmtree(place)
    return {
        "campaign": make.name, "seed": seed, "kills": _processes(deaths), "at": dict(deaths),
        "runs": runs, "rounds": int(runs * make.rounds), "servers": servers, "identical": True,
    }  # fmt: skip


def _processes(deaths: Counter[str]) -> int:
    return sum(n for name, n in deaths.items() if name not in (FOLDER, ENDED))
