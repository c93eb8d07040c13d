"""A client's part in a round of a federation, with what it keeps in Flower or in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.inner import Rows
from fetchsgd.errors import UserError
from fetchsgd.exchange.agreement import digest
from fetchsgd.exchange.client import Computed, Participant
from fetchsgd.exchange.messages import Answer, ResendRequest, Work
from fetchsgd.flower.client_state import Keeper
from fetchsgd.flower.settings import read_settings
from fetchsgd.flower.work import compute
from fetchsgd.runs.setup import Setup
from fetchsgd.sums import Modular


def take_part(
    task: Work,
    client: int,
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    keeper: Keeper,
) -> Answer | ResendRequest:
    """Lines 6 to 8 of Algorithm 1."""
    setup = setup_for(task, run_config, node_config)
    if isinstance(setup.quantiser, Modular):
        raise UserError(
            "the settings ask for secure aggregation, and the server asks for a message without "
            "masks; that is refused"
        )
    return Client(setup, client, keeper).answer(task)


def setup_for(task: Work, run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Setup:
    """The run as this client knows it, if it is the server's."""
    config, federation = read_settings(run_config, node_config)
    setup = Setup(config, federation.clients)
    if task.digest != digest(setup):
        raise UserError(
            "the server has other settings or other initial weights than this client; are the "
            "versions of fetchsgd and torch the same, and the task?"
        )
    return setup


@dataclass(frozen=True)
class Client:
    """One client of a run, with what it keeps between rounds."""

    setup: Setup
    number: int
    keeper: Keeper

    def answer(self, task: Work) -> Answer | ResendRequest:
        """What the client replies; what it keeps from then on is saved."""

        def own(weights: Float32[Tensor, " dim"], kept: Rows | None) -> Computed:
            return compute(self.setup, weights, self.number, task.round, task.rate, kept)

        before = self.keeper.load()
        answer, state = Participant(self.setup, self.number).answer(task, own, before)
        if state is not None and state is not before:
            self.keeper.save(state)
        return answer
