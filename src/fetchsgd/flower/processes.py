"""A whole federation on this machine: a SuperLink, SuperNodes and runs, and nothing left behind.

    with Federation(folder) as federation:
        federation.start_nodes(3)
        federation.run(app, {"train.epochs": 2.0})

All files go to `folder`: Flower's own settings, logs, and whatever the run writes. Every process
has a mark in its environment, which what it starts inherits: so everything can be found and ended,
also what Flower puts into a session of its own and then forgets.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fetchsgd.errors import UserError

NAME = "here"  # of the SuperLink in Flower's settings
MARK = "FETCHSGD_FEDERATION"
GRACE = 5.0  # seconds to end by themselves

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    # Three clients on two cores: threads that wait for each other would be slower.
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Federation:
    """Processes of Flower, on loopback if no other address of this machine is given as `host`.

    tls: certificates as keys.py makes them, and node keys.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    tls: Path | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = 0
    host: str = "127.0.0.1"

    def __enter__(self) -> Federation:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port(self.host)
        self._configure()
        try:
            self.start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start_superlink(self) -> None:
        """On the same port as before, if it was started before."""
        secure = ["--insecure"]
        if self.tls is not None:
            secure = [
                "--ssl-ca-certfile", str(self.tls / "ca.crt"),
                "--ssl-certfile", str(self.tls / "server.crt"),
                "--ssl-keyfile", str(self.tls / "server.key"),
                "--enable-supernode-auth",
            ]  # fmt: skip
        self.start(
            "superlink",
            "flower-superlink", *secure, "--host", self.host, "--port", str(self.port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_for_port(self.host, self.port, self.processes["superlink"])

    def start_nodes(self, clients: Iterable[int] | int) -> None:
        for client in range(clients) if isinstance(clients, int) else clients:
            self.start_node(f"node{client}", f"partition-id={client}")

    def start_node(
        self,
        name: str,
        config: str,
        key: Path | None = None,
        inside: Sequence[str] = (),
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """A SuperNode with this --node-config.

        inside: words before its command, such as those of `ip netns exec NAME`.
        """
        secure = ["--insecure"]
        if self.tls is not None:
            secure = ["--root-certificates", str(self.tls / "ca.crt")]
        if key is not None:
            secure += ["--auth-supernode-private-key", str(key)]
        return self.start(
            name,
            *inside, program("flower-supernode"), *secure, "--superlink", self.address,
            "--node-config", config, "--port", str(free_port()), **environment,
        )  # fmt: skip

    def run_command(self, app: Path, settings: Mapping[str, Any]) -> list[str]:
        given = " ".join(f"{key}={_toml(value)}" for key, value in settings.items())
        changed = ["--run-config", given] if given else []
        return [program("flwr"), "run", str(app.resolve()), NAME, "--stream", *changed]

    def start_run(
        self, app: Path, settings: Mapping[str, Any], name: str = "run"
    ) -> subprocess.Popen[bytes]:
        """Submit the app and show its log, without waiting for it."""
        return self.start(name, *self.run_command(app, settings))

    def run(self, app: Path, settings: Mapping[str, Any], timeout: float = 600.0) -> str:
        """Submit the app, wait for its end, and return its log."""
        process = self.start_run(app, settings)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"the run has not ended after {timeout:g} s: {self.log('run')[-2000:]}"
            ) from None
        return self.log("run")

    def flwr(self, *words: str) -> str:
        """What another command of Flower prints."""
        done = subprocess.run(
            [program("flwr"), *words], env=self._environment("flwr"), text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    def start(self, name: str, command: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [program(command), *words], env=self._environment(name) | more, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self, *names: str) -> list[int]:
        """Of what was started under these names, with all that it has started itself."""
        return marked({f"{MARK}={self.folder}:{name}" for name in names})

    def signal(self, name: str, number: signal.Signals) -> None:
        """To the process and all that it has started."""
        send(number, self.pids(name))

    def kill(self, name: str) -> None:
        """End it as kill -9 does, with all that it has started."""
        process = self.processes.pop(name)
        self._kill_all([name])
        process.wait()

    def kill_server(self) -> bool:
        """End the ServerApp's process as kill -9 does; the SuperLink lives on."""
        found = [pid for pid in self.pids("superlink") if "flwr-serverapp" in words(pid)]
        send(signal.SIGKILL, found)
        return bool(found)

    def stop(self) -> None:
        """End everything, the last started first; what does not end by itself is killed."""
        processes, names = list(reversed(self.processes.values())), list(self.processes)
        self.processes.clear()
        send(signal.SIGCONT, self.pids(*names))  # a stopped process would not receive the signal
        for process in processes:
            process.terminate()
        end = time.monotonic() + GRACE
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
        self._kill_all(names)
        for process in processes:
            process.kill()
            process.wait()

    def _kill_all(self, names: list[str]) -> None:
        """Until nothing is left; a process may be about to start another."""
        end = time.monotonic() + GRACE
        while (found := self.pids(*names)) and time.monotonic() < end:
            send(signal.SIGKILL, found)
            time.sleep(0.05)

    def _environment(self, name: str) -> dict[str, str]:
        # Flower starts its helpers by name, so they must be on the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(self.folder / "flwr"), "PATH": path, MARK: f"{self.folder}:{name}"}
        return {**os.environ, **ENVIRONMENT, **own, **self.environment}

    def _configure(self) -> None:
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        secure = "insecure = true"
        if self.tls is not None:
            secure = f'root-certificates = "{self.tls / "ca.crt"}"'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n'
            f'[superlink.{NAME}]\naddress = "{self.address}"\n{secure}\n'
        )


def program(name: str) -> str:
    """One of Flower's programs, from the environment that runs this."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def marked(marks: set[str]) -> list[int]:
    """Processes with one of these in their environment, and still running (on Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marks & set((folder / "environ").read_bytes().decode(errors="replace").split("\0")):
                found.append(int(folder.name))
    return found


def words(pid: int) -> str:
    """The command line of a process; nothing where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(
    host: str, port: int, process: subprocess.Popen[bytes], seconds: float = 60.0
) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise UserError(f"the SuperLink has ended with code {process.returncode}; see its log")
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.1)
    raise UserError(f"the SuperLink does not listen on port {port} after {seconds:g} s")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)
