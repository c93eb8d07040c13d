"""A client's part in a round as a function from bytes to bytes (Algorithm 1, lines 6 to 8)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.inner import Rows
from fetchsgd.errors import UserError
from fetchsgd.exchange.client import Computed, Participant
from fetchsgd.exchange.client_state import ClientState
from fetchsgd.exchange.frames import from_frame, to_frame
from fetchsgd.exchange.messages import Work
from fetchsgd.exchange.own_model import OwnLoss, OwnTraining, OwnWork
from fetchsgd.exchange.plan import Plan
from fetchsgd.exchange.rejections import RejectedError


def client_update(
    request: bytes,
    plan: Plan,
    loss: OwnLoss | None = None,
    data: Any = None,
    state: ClientState | None = None,
    *,
    train: OwnTraining | None = None,
) -> tuple[bytes, ClientState | None]:
    """Answer a server's request: bring the weights up to date, compute, and send what is asked.

    The model of the plan holds the weights of the round afterwards, or those after local steps, so
    two threads must not share a plan.

    Args:
        request: the bytes that `Server.request` has returned.
        plan: the same as the server's.
        loss: a function of the model and a batch: the mean over the batch as a scalar, or one
            number for each example.
        data: the client's own: one batch, a tensor, a tuple or a dictionary of tensors whose first
            dimension counts examples; or an iterable of batches, as a list or a DataLoader.
        state: what this client kept the last time; None for a new client, and for one that has
            lost it.
        train: instead of the loss, a function of the model, the data and the learning rate that
            trains the model where it is, by any optimiser, and returns its mean loss and the
            number of examples. The plan must ask for local steps.

    Returns:
        The reply for `Server.receive`, and the state to keep for the next time.

    Raises:
        RejectedError: the request is damaged, or of a server with another plan. The state is as
            it was.

    >>> import torch, fetchsgd as fs
    >>> plan = fs.Plan(lambda: torch.nn.Linear(2, 1), "uncompressed", schedule={"peak": 0.1})
    >>> server = fs.Server(plan)
    >>> def loss(model, batch):
    ...     return (model(batch["x"]).squeeze(1) - batch["y"]).square()
    >>> data = {"x": torch.ones(3, 2), "y": torch.zeros(3)}
    >>> reply, state = fs.client_update(server.request(0), plan, loss, data)
    >>> server.receive(reply)
    >>> server.step().clients
    (0,)
    """
    if (loss is None) == (train is None):
        raise UserError("give client_update either a loss or train, and not both")
    task = from_frame(request, Work)
    if task.digest != plan.digest:
        raise RejectedError(
            "settings",
            "the server has another plan, or other initial weights; are the versions of fetchsgd "
            "and torch the same on both sides?",
        )
    own = OwnWork(plan.setup, task.client, task.round, task.rate)

    def compute(weights: Float32[Tensor, " dim"], kept: Rows | None) -> Computed:
        if train is not None:
            return own.by_training(train, data, weights)
        assert loss is not None
        return own.by_loss(loss, data, weights, kept)

    answer, state = Participant(plan.setup, task.client).answer(task, compute, state)
    return to_frame(answer), state
