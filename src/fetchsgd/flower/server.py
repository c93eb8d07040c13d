"""The ServerApp: rounds of real clients in Algorithm 1's loop, with a checkpoint after each.

After a crash the next `flwr run` resumes from the last round whose checkpoint is whole. Messages of
a round leave only when the checkpoint of the round before is on the disk, so no client ever holds a
version that a resumed server would make anew.
"""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.evaluate import evaluate
from fetchsgd.errors import UserError
from fetchsgd.exchange.agreement import digest
from fetchsgd.flower.admission import Admission
from fetchsgd.flower.events import Events
from fetchsgd.flower.patience import Patience
from fetchsgd.flower.remembered import Remembered
from fetchsgd.flower.secure.account import Account, SpentError
from fetchsgd.flower.server_round import Clock, Collector
from fetchsgd.flower.settings import FederationSettings, as_table, read_settings
from fetchsgd.flower.transport import Transport
from fetchsgd.formatting import format_bytes
from fetchsgd.runs.checkpoint import Tensors, load_checkpoint
from fetchsgd.runs.endpoint import Newest, served
from fetchsgd.runs.files import write_atomically
from fetchsgd.runs.folder import Line
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.merging import make_merger
from fetchsgd.runs.private_modes import Distributed, private
from fetchsgd.runs.recorder import Beside, Evaluation, Pace, Recorder, open_folder, unless_diverged
from fetchsgd.runs.setup import Setup
from fetchsgd.runs.sums import SumsRecord
from fetchsgd.server.rounds import Clients, Merged, Training, train_rounds
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
    with (
        alone_in(out, "stop it with `flwr stop`, or give another federation.out"),
        served(settings.metrics_port) as endpoint,
    ):
        folder = open_folder(out, setup.config, resume=True)
        if (done := folder.result) is not None:
            log.info("%s holds a run that has ended; give another federation.out", out)
            return unless_diverged(done, out)
        training = setup.start()
        found = load_checkpoint(out, training, setup.grid.downloads(), setup.device)
        training = training if found is None else found.training
        folder.start(training.round)
        events = Events(folder.last_line)
        merger = make_merger(setup)
        admission = Admission(settings.norm_factor, settings.examples_factor, events.references)
        patience = Patience(events)
        beside: dict[str, Beside] = {
            "federation": FederationLog(events, settings),
            "replies": Remembered(admission, patience),
        }
        beside |= {} if merger is None else {"merge": merger}
        sums = SumsRecord(setup.device, counted=False)
        is_secure = isinstance(setup.quantiser, Modular)
        if is_secure:
            beside["sums"] = sums
        account = _account(setup, out)
        if account is not None:
            beside["privacy"] = account
        test = partial(_evaluate, setup, setup.test_data())
        newest = Newest(setup.config.task.metric)
        if endpoint is not None:
            endpoint.sources.extend([newest.numbers, events.numbers])
        recorder = Recorder(setup, folder, test, EVERY_ROUND, newest, beside)
        if found is not None:
            events.count("resumed")
            recorder.resume(found)
        clock = clock or Clock()
        clock = replace(clock, sleep=recorder.phases.timed("waiting", clock.sleep))
        transport = Transport(grid, events, clock.now)
        name = lineage(out)
        collector = Collector(
            setup, settings, digest(setup), name, transport, events, admission, patience, clock,
            merger,
        )  # fmt: skip
        try:
            collect = collector.collect
            if is_secure:
                from fetchsgd.flower.secure.rounds import SecureRounds

                collect = SecureRounds.open(collector, out, name, account).collect
            return _train(setup, training, collector, collect, recorder, sums)
        finally:
            recorder.close()


def _account(setup: Setup, folder: Path) -> Account | None:
    """Of noise by the clients, if they add any."""
    found = private(setup.config, setup.sampler, setup.rounds, setup.levels)
    if not isinstance(found, Distributed):
        return None
    for note in found.notes:
        if not note.startswith("the last cohort"):  # here spares fill it up
            log.info(note)
    return Account(found, folder)


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
    phases = recorder.phases
    rounds = train_rounds(
        training, setup.rounds, phases.timed("clients", collect), setup.rate, setup.method,
        setup.grid, setup.server_rate, setup.decay,
    )  # fmt: skip
    stopped = None
    try:
        for training, merged in phases.rounds(rounds):
            sums.after(merged)
            # On the disk before anybody hears of this version.
            recorder.after(training, merged)
            _tell(training, merged, recorder, collector.events)
    except SpentError as error:
        stopped = str(error)
        log.warning(stopped)
    return recorder.finish(training, stopped)


def _tell(training: Training, merged: Merged, recorder: Recorder, events: Events) -> None:
    setup, metric = recorder.setup, recorder.metric
    log.info(
        "round %d of %d: %d replies%s%s; since the first round %s, %s up, %s down, %s",
        training.round, setup.rounds, len(merged.clients),
        f", loss {float(merged.loss):.4f}" if merged.loss_is_known else "",
        "" if metric is None else f", {setup.config.task.metric} {metric:.4f}",
        events.told_rejections(), format_bytes(events.counts["received_bytes"]),
        format_bytes(events.counts["sent_bytes"]), recorder.phases,
    )  # fmt: skip


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
    try:
        return str(json.loads(path.read_text())["lineage"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged, and with it the name under which clients know this run's "
            "versions; remove the file, and clients fetch everything anew"
        ) from error
