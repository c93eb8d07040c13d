"""The ServerApp: rounds of real clients in Algorithm 1's loop, with a checkpoint after each.

After a crash the next `flwr run` resumes from the last round whose checkpoint is whole. Messages of
a round leave only when the checkpoint of the round before is on the disk, so no client ever holds a
version that a resumed server would make anew.
"""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.evaluate import evaluate
from fetchsgd.exchange.agreement import digest
from fetchsgd.flower.events import Events
from fetchsgd.flower.server_round import Clock, Collector
from fetchsgd.flower.settings import FederationSettings, as_table, read_settings
from fetchsgd.flower.transport import Transport
from fetchsgd.runs.checkpoint import Tensors, load_checkpoint
from fetchsgd.runs.files import write_atomically
from fetchsgd.runs.folder import Line
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.recorder import Beside, Evaluation, Pace, Recorder, open_folder, unless_diverged
from fetchsgd.runs.setup import Setup
from fetchsgd.runs.sums import SumsRecord
from fetchsgd.server.rounds import Clients, Training, train_rounds
from fetchsgd.sums import Modular

log = logging.getLogger("flwr.fetchsgd")
ABOUT = "federation.json"
EVERY_ROUND = Pace(look_every=1, save_every=1, every_round=True)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """From the settings of `flwr run` to a run folder."""
    config, settings = read_settings(context.run_config)
    result = federate(grid, Setup(config, settings.clients), settings)
    log.info(
        "%s %s after %d rounds; results are in %s",
        result["metric"], result["value"], result["rounds"], settings.out,
    )  # fmt: skip


def federate(
    grid: Grid, setup: Setup, settings: FederationSettings, clock: Clock | None = None
) -> dict[str, Any]:
    """Train to the end, from wherever the run folder stands."""
    out = Path(settings.out)
    with alone_in(out, "stop it with `flwr stop`, or give another federation.out"):
        folder = open_folder(out, setup.config, resume=True)
        if (done := folder.result) is not None:
            log.info("%s holds a run that has ended; give another federation.out", out)
            return unless_diverged(done, out)
        training = setup.start()
        found = load_checkpoint(out, training, setup.grid.downloads(), setup.device)
        training = training if found is None else found.training
        folder.start(training.round)
        events = Events(folder.last_line)
        beside: dict[str, Beside] = {"federation": FederationLog(events, settings)}
        sums = SumsRecord(setup.device, counted=False)
        is_secure = isinstance(setup.quantiser, Modular)
        if is_secure:
            beside["sums"] = sums
        test = partial(_evaluate, setup, setup.test_data())
        recorder = Recorder(setup, folder, test, EVERY_ROUND, beside=beside)
        if found is not None:
            events.count("resumed")
            recorder.resume(found)
        clock = clock or Clock()
        transport = Transport(grid, events, clock.now)
        name = lineage(out)
        collector = Collector(setup, settings, digest(setup), name, transport, events, clock)
        try:
            collect = collector.collect
            if is_secure:
                from fetchsgd.flower.secure_round import SecureRounds

                collect = SecureRounds.open(collector, out, name).collect
            return _train(setup, training, collector, collect, recorder, sums)
        finally:
            recorder.close()


def _train(
    setup: Setup,
    training: Training,
    collector: Collector,
    collect: Clients,
    recorder: Recorder,
    sums: SumsRecord,
) -> dict[str, Any]:
    log.info("round %d of %d", training.round, setup.rounds)
    if training.round < setup.rounds:
        collector.wait_for_clients(training.round)
    rounds = train_rounds(
        training, setup.rounds, collect, setup.rate, setup.method, setup.grid,
        setup.server_rate, setup.decay,
    )  # fmt: skip
    for training, merged in rounds:
        sums.after(merged)
        # On the disk before anybody hears of this version.
        recorder.after(training, merged)
        metric = recorder.metric
        log.info(
            "round %d of %d: %d replies, loss %.4f%s",
            training.round, setup.rounds, len(merged.clients), float(merged.loss),
            "" if metric is None else f", {setup.config.task.metric} {metric:.4f}",
        )  # fmt: skip
    return recorder.finish(training)


def _evaluate(
    setup: Setup, test: tuple[Tensor, Tensor], weights: Float32[Tensor, " dim"]
) -> Evaluation:
    return Evaluation(*evaluate(setup.trainer, setup.config.task, *test, weights))


@dataclass(frozen=True)
class FederationLog:
    """What happened in the federation, in the lines of a run folder."""

    events: Events
    settings: FederationSettings

    def line(self) -> Line:
        counts = self.events.counts
        return {
            "measured_upload_bytes": counts["received_bytes"],
            "measured_download_bytes": counts["sent_bytes"],
            **self.events.line(),
        }

    def result(self) -> Line:
        settings, counts = as_table(self.settings), dict(self.events.counts)
        return {"federation": {"settings": settings, "counts": counts}}

    def tensors(self) -> Tensors:
        """The counts are in the metrics."""
        return {}

    def restore(self, tensors: Tensors) -> None:
        """Nothing was saved."""


def lineage(folder: Path) -> str:
    """A name for a run's versions, which no other run has."""
    path = folder / ABOUT
    if not path.exists():
        about = {"lineage": secrets.token_hex(8)}
        write_atomically(path, json.dumps(about).encode())
    return str(json.loads(path.read_text())["lineage"])
