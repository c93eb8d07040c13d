"""The ServerApp: round after round, with a checkpoint after each, and the simulator's run folder.

After `kill -9` the next `flwr run` goes on from the last round whose checkpoint is whole. Messages
of a round leave only when the checkpoint of the round before is on the disk, so no client ever
holds a version that a resumed server would make anew.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fetchsgd.errors import UserError
from fetchsgd.flower.events import Events
from fetchsgd.flower.run import FederatedRun
from fetchsgd.flower.server_round import Clock, Collector
from fetchsgd.flower.settings import FederationSettings, as_table, read_settings
from fetchsgd.flower.transport import Transport
from fetchsgd.runs.checkpoint import load_checkpoint, write_atomically
from fetchsgd.runs.folder import Line, RunFolder
from fetchsgd.server.rounds import Training, after_round
from fetchsgd.simulate.run import Loop

log = logging.getLogger("flwr.fetchsgd")
ABOUT = "federation.json"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """From the settings of `flwr run` to a run folder."""
    config, settings = read_settings(context.run_config)
    result = federate(grid, FederatedRun(config, settings.clients), settings)
    log.info(
        "%s %s after %d rounds; results are in %s",
        result["metric"], result["value"], result["rounds"], settings.out,
    )  # fmt: skip


def federate(
    grid: Grid, run: FederatedRun, settings: FederationSettings, clock: Clock | None = None
) -> dict[str, Any]:
    """Train to the end, from wherever the run folder stands."""
    out = Path(settings.out)
    folder = FederatedFolder(out, run.config.settings, resume=True)
    with alone_in(out):
        if (done := folder.result) is not None:
            log.info("%s holds a run that has ended; give another federation.out", out)
            return done
        found = load_checkpoint(out, run.downloads(), run.device)
        training, seconds = found or (run.start(), 0.0)
        folder.start(training.round)
        events = Events(folder.last_line)
        if found is not None:
            events.count("resumed")
        folder.events, folder.settings = events, settings
        clock = clock or Clock()
        transport = Transport(grid, events, clock.now)
        collector = Collector(run, settings, folder.lineage, transport, events, clock)
        loop = _FederatedLoop(run, folder, seconds, collector)
        try:
            return loop.run(training)
        finally:
            loop.checkpoints.close()
            folder.close()


class FederatedFolder(RunFolder):
    """A run folder whose lines also tell what happened in the federation."""

    events = Events()
    settings = FederationSettings()

    def log(self, line: Line) -> None:
        counts = self.events.line()
        measured = {
            "measured_upload_bytes": self.events.counts["received_bytes"],
            "measured_download_bytes": self.events.counts["sent_bytes"],
        }
        super().log(line | measured | counts)

    def finish(self, result: Line) -> None:
        federation = {"settings": as_table(self.settings), "counts": dict(self.events.counts)}
        result["federation"] = federation
        super().finish(result)

    @property
    def lineage(self) -> str:
        """A name for this run's versions, which no other run has."""
        path = self.path / ABOUT
        if not path.exists():
            about = {"lineage": secrets.token_hex(8)}
            write_atomically(path, json.dumps(about).encode())
        return str(json.loads(path.read_text())["lineage"])


class _FederatedLoop(Loop):
    """The simulator's bookkeeping around rounds of real clients."""

    def __init__(
        self, run: FederatedRun, folder: FederatedFolder, seconds: float, collector: Collector
    ) -> None:
        super().__init__(run, folder, seconds, None)
        self.collector = collector

    def run(self, training: Training) -> dict[str, Any]:
        run = self.run_
        log.info("round %d of %d", training.round, run.rounds)
        if training.round < run.rounds:
            self.collector.wait_for_clients(training.round)
        while training.round < run.rounds:
            training = self._round(training)
        return self._finish(training, "finished")

    def _round(self, training: Training) -> Training:
        run = self.run_
        replies = self.collector.collect(training)
        merged = replies.merged()
        rate = run.rate(training.round) if run.config.local.is_one_gradient else 1.0
        training = after_round(training, merged, rate, run.method, run.grid)
        self.losses.append(merged.loss)
        self._look(training, replies.typical_loss)
        if training.round in self.eval_rounds:
            self._evaluate(training)
        else:
            self._log_round(training, float(merged.loss))
        # On the disk before anybody hears of this version.
        self.checkpoints.save(training, self.seconds)
        self.checkpoints.wait()
        log.info(
            "round %d of %d: %d replies, loss %.4f%s",
            training.round, run.rounds, len(replies), float(merged.loss),
            "" if self.metric is None else f", {run.config.task.metric} {self.metric:.4f}",
        )  # fmt: skip
        return training

    def _log_round(self, training: Training, loss: float) -> None:
        up, down = training.ledger.bytes
        wire_up, wire_down = training.ledger.wire_bytes
        self.folder.log(
            {
                "round": training.round,
                "epoch": training.round / self.run_.sampler.rounds_per_epoch,
                "train_loss": loss,
                "upload_bytes": up,
                "download_bytes": down,
                "wire_upload_bytes": wire_up,
                "wire_download_bytes": wire_down,
                "seconds": self.seconds,
            }
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two servers in one folder would apply rounds twice. The lock ends with its process."""
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise UserError(
                f"another server, process {file.read().strip()}, is training in {folder}; wait "
                "until it has ended, stop it with `flwr stop`, or give another federation.out"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
