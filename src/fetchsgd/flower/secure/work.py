"""From a delivery to a masked vector: the update, the local work, whole levels, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import UInt32, UInt64
from numpy import ndarray

from fetchsgd.errors import UserError
from fetchsgd.exchange.agreement import context
from fetchsgd.exchange.client import Computed, Participant, of_this_run, with_optimiser
from fetchsgd.exchange.messages import ResendRequest, SecureWork
from fetchsgd.exchange.totals import NUM_TOTALS, to_totals
from fetchsgd.flower.client_round import setup_for
from fetchsgd.flower.client_state import Keeper
from fetchsgd.flower.secure.participant import SecureParticipant
from fetchsgd.flower.work import compute
from fetchsgd.privacy import Source
from fetchsgd.runs.setup import Setup
from fetchsgd.secure import RefusedError, Terms
from fetchsgd.sums import Modular, ModularRound
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.noise_sources import SecretNoise, SeededNoise
from fetchsgd.sums.residues import Residues

LEAST_NOISE, LONGEST_CLIP = "privacy-noise", "privacy-clip"  # in the node config


def masked(
    own: SecureParticipant,
    content: SecureWork,
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    keeper: Keeper,
) -> bytes | ResendRequest:
    """The client's masked vector, or what it holds instead of what the update begins at."""
    task, delivery = content.parts()
    if (again := own.answered(delivery)) is not None:
        return again
    setup = setup_for(task, run_config, node_config)
    check_terms(own.terms, setup, task.round)
    check_noise(setup, node_config)
    number = own.client.number
    before = keeper.load()
    participant = Participant(setup, number)
    now = participant.bring(task, before)
    if isinstance(now, tuple):
        asks, kept = now
        if kept is not None and kept is not before:
            keeper.save(kept)
        return asks
    remembered = participant.optimiser(of_this_run(task, before))
    computed = compute(setup, now.weights, number, task.round, task.rate, remembered)
    if not bool(computed.vector.isfinite().all()):
        raise UserError("what this client has computed is not finite: it is left out of the sum")
    keeper.save(with_optimiser(now.state, computed.kept))
    seen = context(task.digest, task.round, task.rate, task.size, now.weights)
    levels = levels_of(setup, computed, number, task.round, task.size, own.noise_key)
    return own.mask(delivery, *levels, seen)


def check_terms(terms: Terms, setup: Setup, round: int) -> None:
    """The round that was joined is the one that work has come for."""
    quantiser, numbers = setup.quantiser, setup.method.message.numbers
    if not isinstance(quantiser, Modular) or not quantiser.secure:
        raise RefusedError("the settings of this run do not ask for secure aggregation")
    wanted = (round, Layout.of(numbers).cells, quantiser.sum_bits, NUM_TOTALS)
    if (terms.round, terms.cells, terms.bits, terms.totals) != wanted:
        raise RefusedError("the work is of another round, or of another size, than was joined")


def check_noise(setup: Setup, node_config: Mapping[str, Any]) -> None:
    """A node may insist on noise: the least of it in a sum, over the clip, and the longest clip."""
    wanted = {}
    for key, usual in ((LEAST_NOISE, 0.0), (LONGEST_CLIP, math.inf)):
        wanted[key] = node_config.get(key, usual)
        if type(wanted[key]) not in (int, float) or wanted[key] < 0:
            raise UserError(f"{key} in the node config must be a number, got {wanted[key]!r}")
    noise = 0.0 if setup.levels is None else setup.levels.noise.noise
    if noise < wanted[LEAST_NOISE]:
        raise RefusedError(
            f"the run has a noise of {noise:g}, and this node wants {wanted[LEAST_NOISE]:g}"
        )
    clip = math.inf if setup.levels is None else setup.levels.noise.clip
    if clip > wanted[LONGEST_CLIP]:
        raise RefusedError(
            f"the run clips at {clip:g}, and this node sends nothing longer than "
            f"{wanted[LONGEST_CLIP]:g}"
        )


def levels_of(
    setup: Setup,
    computed: Computed,
    client: int,
    round: int,
    size: float,
    noise_key: Callable[[], bytes],
) -> tuple[UInt32[ndarray, " cells"], UInt64[ndarray, " totals"]]:
    """What goes under masks: levels modulo 2^b, and what is summed beside them.

    With noise nobody is told of the loss, which no noise covers.
    """
    upload, train = setup.upload(round, size), setup.config.train
    if setup.levels is not None:
        is_seeded = setup.config.privacy.random == "seed"
        source = SeededNoise(train.seed) if is_seeded else SecretNoise(Source(noise_key()))
        noisy = cast(ModularRound, upload.quantiser).noisy_by(source)
        upload = upload._replace(quantiser=noisy)
    elif train.averaging == "examples":
        examples = torch.tensor([computed.examples], device=computed.vector.device)
        weighing = cast(ModularRound, upload.quantiser).weighing(examples)
        upload = upload._replace(quantiser=weighing)
    payload = setup.method.message.write(computed.vector, None, client, round, upload)
    residues = cast(Residues, payload.values)
    cells = residues.cells.cpu().numpy().astype(np.uint32)
    return cells, to_totals(residues.weight, computed.loss if setup.levels is None else 0.0)
