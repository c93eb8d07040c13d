"""Replies into one sum, as they arrive (Algorithm 1, line 10). Nothing here knows Flower.

A reply is judged first: every check that can be made without trusting the client. What a payload
must look like, and how it adds up, is the method's matter (its message). Then it is added and
forgotten, so memory does not grow with the cohort. The sum is in float64: in which order replies
arrive makes no difference that float32 would see, but for rare last bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float32, Float64
from numpy import ndarray
from torch import Tensor

from fetchsgd.exchange.messages import Answer
from fetchsgd.exchange.rejections import Reason, RejectedError
from fetchsgd.methods import Message, Reply
from fetchsgd.methods.messages.merge_loops import sum_of_squares
from fetchsgd.quantisers import Quantiser
from fetchsgd.robust import Merger
from fetchsgd.server.rounds import Merged
from fetchsgd.wire import Header, MismatchError, Payload, WireError, decode


@dataclass(frozen=True)
class Expected:
    """What an honest reply of this round looks like, and the limits for all others."""

    message: Message
    quantiser: Quantiser
    digest: str
    lineage: str
    round: int
    by_examples: bool
    max_norm: float = 0.0
    clip_norm: float = 0.0
    max_examples: int = 1_000_000

    @property
    def longest_payload(self) -> int:
        """Bytes; no honest payload has more."""
        return self.message.most_bytes(self.quantiser)


@dataclass(frozen=True)
class Accepted:
    """A reply that has passed: its numbers, and what they count."""

    reply: Reply
    weight: float
    examples: int  # that the client claims
    loss: float
    norm: float  # of the numbers, see length()
    predicted_bytes: float  # as the ledger counts, to compare with what was measured


def judge(answer: Answer, client: int, expected: Expected) -> Accepted:
    """The reply of the client that was asked, or RejectedError."""
    _check_header(answer, client, expected)
    payload = _decoded(answer.payload, expected)
    reply = expected.message.read(payload)
    norm = _norm(reply)
    # The square of a float32 is finite in float64: so is the norm, unless a number is not.
    if not math.isfinite(norm) or not math.isfinite(answer.loss):
        raise RejectedError("not_finite", "the reply holds numbers that are not finite")
    if _is_to_be_clipped(norm, expected):
        clipped = reply.numbers * (expected.clip_norm / norm)
        reply, norm = replace(reply, held=clipped), length(clipped)
    weight = float(answer.examples) if expected.by_examples else 1.0
    return Accepted(
        reply, weight, answer.examples, answer.loss, norm,
        expected.message.predicted_bytes(payload),
    )  # fmt: skip


def _check_header(answer: Answer, client: int, expected: Expected) -> None:
    if answer.digest != expected.digest:
        raise RejectedError(
            "settings",
            "the client has other settings or other initial weights; are the versions of fetchsgd "
            "and torch the same, and the task?",
        )
    if answer.lineage != expected.lineage or answer.round != expected.round:
        raise RejectedError("round", f"the reply is of round {answer.round}, not {expected.round}")
    if answer.client != client:
        raise RejectedError("round", f"client {client} was asked, client {answer.client} replies")
    if not 1 <= answer.examples <= expected.max_examples:
        raise RejectedError(
            "examples",
            f"the client claims {answer.examples} examples; from 1 to federation.max_examples = "
            f"{expected.max_examples} are believed",
        )


def _decoded(data: bytes, expected: Expected) -> Payload:
    """The payload, of which the header alone decides whether the rest is read."""
    most = expected.longest_payload
    if len(data) > most:
        raise RejectedError("shape", f"the payload has {len(data)} bytes, at most {most} may be")

    def check(header: Header) -> None:
        expected.message.check(header, expected.round, expected.quantiser)

    try:
        return decode(data, check)
    except MismatchError as error:
        raise RejectedError(cast(Reason, error.reason), str(error)) from error
    except WireError as error:
        raise RejectedError("undecodable", str(error)) from error


def length(numbers: Tensor) -> float:
    """The norm of a vector, or of the longest row of a table.

    Every row of an honest table is about as long as the vector that it sketches. By a median over
    rows, half of them could be as long as they like.
    """
    if not numbers.numel():
        return 0.0
    rows = numbers.view(-1, numbers.shape[-1])
    if numbers.device.type != "cpu":
        return float(torch.linalg.vector_norm(rows.double(), dim=1).max())
    return _longest(rows.detach().numpy())


def _norm(reply: Reply) -> float:
    """Of a reply's numbers, as `length` has it; of levels there is never more than one row."""
    if isinstance(reply.held, Tensor):
        return length(reply.held)
    return _longest(reply.held.float_rows(reply.shape[-1]))


def _longest(rows: Iterable[Float32[ndarray, " cols"]]) -> float:
    squares = [float(sum_of_squares(row)) for row in rows]
    return math.nan if any(map(math.isnan, squares)) else math.sqrt(max(squares, default=0.0))


def _is_to_be_clipped(norm: float, expected: Expected) -> bool:
    """Reject what is longer than is allowed at all; whether clipping is asked for and needed."""
    if expected.max_norm and norm > expected.max_norm:
        raise RejectedError(
            "norm", f"its norm is {norm:.3g}, above federation.max_norm = {expected.max_norm:g}"
        )
    return 0 < expected.clip_norm < norm


class RunningMean:
    """The weighted sum of what has been accepted so far, and nothing else of it."""

    def __init__(self, message: Message, device: torch.device) -> None:
        self.message = message
        self.total: Float64[Tensor, ...] = torch.zeros(
            message.shape, dtype=torch.float64, device=device
        )
        self.weight = 0.0
        self.numbers = 0
        self.predicted_bytes = 0.0
        self.losses: dict[int, tuple[float, float]] = {}  # and weights, by client
        self.sizes: list[float] = []  # of the numbers of each reply, where it matters

    def __len__(self) -> int:
        return len(self.losses)

    def add(self, client: int, accepted: Accepted) -> None:
        self._add(client, accepted)
        self.numbers += accepted.reply.counted
        self.weight += accepted.weight
        self.predicted_bytes += accepted.predicted_bytes
        self.losses[client] = accepted.loss, accepted.weight
        if accepted.reply.size is not None:
            self.sizes.append(accepted.reply.size)

    def _add(self, client: int, accepted: Accepted) -> None:  # noqa: ARG002
        self.message.add(self.total, accepted.reply, accepted.weight)

    @property
    def mean(self) -> Float32[Tensor, ...]:
        return (self.total / self.weight).float()

    def merged(self, typical_loss: float | None = None) -> Merged:
        """As simulated clients hand it over."""
        # The exact sum: the order in which replies came must not show in its last bit.
        loss = math.fsum(loss * weight for loss, weight in self.losses.values()) / self.weight
        clients = np.array(list(self.losses), np.int64)
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=self.total.device)
        return Merged(
            self.mean, clients, self.numbers, self.predicted_bytes, torch.tensor(loss),
            typical_loss, sizes if len(sizes) else None,
        )  # fmt: skip


class RobustMean(RunningMean):
    """The same by a rule that a minority of liars cannot steer: sums of groups are kept."""

    def __init__(self, message: Message, device: torch.device, merger: Merger) -> None:
        super().__init__(message, device)
        self.merger = merger

    def _add(self, client: int, accepted: Accepted) -> None:
        # The one table that is here anyway holds each reply for a moment.
        self.message.add(self.total.zero_(), accepted.reply, 1.0)
        self.merger.add(client, self.total, accepted.weight)

    @property
    def mean(self) -> Float32[Tensor, ...]:
        return self.merger.mean()

    def merged(self, typical_loss: float | None = None) -> Merged:
        found = super().merged(typical_loss)
        self.merger.close()
        return found
