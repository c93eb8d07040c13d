"""A run's settings as Flower hands them out: flat, `section.key`, the same on every machine.

Flower lets `--run-config` change only keys that the app lists. The key `settings` takes all others,
as one text: `settings = "method.k=500 local.epochs=1"`.

A node's own settings (`--node-config`) change the options of its task, such as where its data is:
`task.folder="/data"`.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.flower.membership import how_many
from fetchsgd.runs.merging import refuse_attack
from fetchsgd.runs.settings import (
    PARTS,
    Config,
    Part,
    check_types,
    parse_assignments,
    refuse_unknown,
    resolve,
    with_names,
)
from fetchsgd.runs.toml_files import Settings
from fetchsgd.sums import Modular

log = logging.getLogger("flwr.fetchsgd")
SECTION = "federation"


@dataclass(frozen=True)
class FederationSettings:
    """The section `federation`."""

    out: str = "runs/federation"  # the run folder, on the server
    directory: str = ""  # clients' public keys, on the server: nodes must prove who they are
    clients: int = 0  # how many there are; 0: as many as the server's task has
    wait: float = 300.0  # seconds for nodes to appear, before a run begins and when all are gone
    deadline: float = 120.0  # seconds for a round
    min_replies: int = 1  # with fewer at the deadline, the round is repeated
    attempts: int = 3  # how often a round is tried
    oversample: float = 1.0  # ask so many times the clients that a round needs
    norm_factor: float = 30.0  # times the largest median norm so far: longer is rejected; 0: off
    max_norm: float = 0.0  # of what a client sends: longer is rejected; 0: no limit
    clip_norm: float = 0.0  # scale what is longer down to this norm; 0: off
    examples_factor: float = 10.0  # times the median claim: the most a reply counts as; 0: off
    max_examples: int = 1_000_000  # that a client may claim: more is rejected
    poll: float = 0.2  # seconds between looks for replies
    phase_deadline: float = 30.0  # seconds for each short phase of secure aggregation
    show: int = 0  # log what the server sees of so many clients of a round with it
    metrics_port: int = 0  # numbers for Prometheus, on the server's loopback; 0: off

    def __post_init__(self) -> None:
        least = {
            "clients": 0, "wait": 0, "deadline": 1, "min_replies": 1, "attempts": 1,
            "oversample": 1, "max_norm": 0, "clip_norm": 0, "max_examples": 1, "poll": 0.01,
            "norm_factor": 0, "examples_factor": 0, "phase_deadline": 1, "show": 0,
            "metrics_port": 0,
        }  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if not bound <= value < float("inf"):
                which = "at least" if value < bound else "finite and at least"
                raise UserError(f"{SECTION}.{name} must be {which} {bound:g}, got {value!r}")
        for name in ("norm_factor", "examples_factor"):
            if 0 < getattr(self, name) < 1:
                raise UserError(
                    f"{SECTION}.{name} must be 0, which is no bound, or at least 1, got "
                    f"{getattr(self, name)!r}: below 1 most honest replies would be too large"
                )
        if not self.out:
            raise UserError(f"{SECTION}.out must name the run folder")


def read_settings(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any] | None = None
) -> tuple[Config, FederationSettings]:
    """Everything about a run, or a sentence. Loads the task's data."""
    given, assignments = _sections(run_config), _assignments(str(run_config.get("settings", "")))
    listed = [(part, part.name_in(given)) for part in PARTS]
    given = with_names(given, assignments)
    for part, name in listed:
        _leave_out_options_of_others(part, name, part.name_in(given), given.get(part.section, {}))
    federation, assignments = _federation(given, assignments)
    for name, value in (node_config or {}).items():
        section, _, key = name.partition(".")
        if section == "task":
            given.setdefault("task", {})[key] = value
    config = resolve(given, assignments, clients=federation.clients)
    if config.train.diagnose:
        raise UserError(
            "train.diagnose = true compares sketches with the clients' whole gradients, and in a "
            "federation nobody sends those; leave it out, or diagnose a simulation with the same "
            "settings: fetchsgd train"
        )
    _refuse_privacy(config)
    refuse_attack(config)
    if isinstance(config.quantiser, Modular):
        _check_secure(config, config.quantiser, federation)
    clients = federation.clients or config.task.train.num_clients
    if federation.min_replies > config.train.clients_per_round:
        raise UserError(
            f"{SECTION}.min_replies must be at most train.clients_per_round = "
            f"{config.train.clients_per_round} (of {clients} clients), got {federation.min_replies}"
        )
    return config, federation


def _refuse_privacy(config: Config) -> None:
    """What would be promised and not be kept."""
    if config.privacy.mode == "central":
        raise UserError(
            "privacy.mode = 'central' is for simulations: in a federation spares and late replies "
            "change who takes part; take 'distributed', noise by the clients, with secure "
            "aggregation (upload.sum = 'modular', upload.secure = true)"
        )
    if config.train.sampling == "poisson":
        raise UserError(
            "train.sampling = 'poisson' is for simulations: in a federation spares take the place "
            "of clients that are missing; take 'epoch' or 'uniform'"
        )


def _check_secure(config: Config, sums: Modular, federation: FederationSettings) -> None:
    """What secure aggregation cannot keep, or cannot do with these numbers."""
    if not sums.secure:
        raise UserError(
            "upload.sum = 'modular' without secure aggregation is for simulations: in a federation "
            "the server would see each message, and shorter ones do; add upload.secure = true, or "
            "leave it out"
        )
    usual = FederationSettings()
    for name in ("max_norm", "clip_norm", "examples_factor", "max_examples"):
        if getattr(federation, name) != getattr(usual, name):
            raise UserError(
                f"{SECTION}.{name} looks at single replies, and with upload.secure = true nobody "
                "sees one; leave it out"
            )
    clients = federation.clients or config.task.train.num_clients
    per_round = min(config.train.clients_per_round, clients)
    last = clients % per_round if config.train.sampling == "epoch" else 0
    for size in {per_round, last or per_round}:
        invited = min(how_many(size, federation.oversample), clients)
        try:
            sums.safety(invited)
        except UserError as error:
            raise UserError(
                f"secure aggregation of a cohort of {invited} clients does not go with "
                f"upload.colluding = {sums.colluding:g} and upload.dropping = {sums.dropping:g}: "
                f"{error}"
            ) from error


def _sections(run_config: Mapping[str, Any]) -> Settings:
    given: Settings = {}
    for name, value in run_config.items():
        section, dot, key = name.partition(".")
        if dot:
            given.setdefault(section, {})[key] = value
        elif name != "settings":
            raise UserError(f"there is no setting {name!r}: settings are named section.key")
    return given


def _assignments(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"settings must be a list of key=value, got {text!r}: {error}") from error


def _leave_out_options_of_others(part: Part, listed: str, name: str, given: Settings) -> None:
    """An app lists options of one method, and Flower keeps them when another one is asked for.

    listed: the method that the app names, which may be the user's own. name: the one asked for.
    given: the section of the part.
    """
    known, others = {part.key, *part.options(name)}, part.options(listed)
    unknown = [key for key in given if key not in known]
    for key in [key for key in unknown if key in others or part.not_an_option(key, name)]:
        value = given.pop(key)
        log.info("%s.%s = %s is left out: %s has no such option", part.section, key, value, name)


def _federation(given: Settings, assignments: list[str]) -> tuple[FederationSettings, list[str]]:
    """Our own section, and the assignments of the others."""
    known: Settings = {SECTION: {field.name: field.default for field in fields(FederationSettings)}}
    ours = [text for text in assignments if text.startswith(f"{SECTION}.")]
    values = given.pop(SECTION, {}) | parse_assignments(ours, known).get(SECTION, {})
    refuse_unknown({SECTION: values}, known)
    check_types(SECTION, values, FederationSettings)
    return FederationSettings(**values), [text for text in assignments if text not in ours]


def as_table(settings: FederationSettings) -> dict[str, Any]:
    return asdict(settings)
