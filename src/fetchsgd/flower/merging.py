"""Replies into one sum, as they arrive (Algorithm 1, line 10). Nothing here knows Flower.

A reply is judged first: every check that can be made without trusting the client. Then it is added
and forgotten, so memory does not grow with the cohort. The sum is in float64: in which order
replies arrive makes no difference that float32 would see, but for rare last bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from fetchsgd.flower.messages import Answer
from fetchsgd.flower.rejections import RejectedError
from fetchsgd.methods import FetchSGD, LocalMethod, Method
from fetchsgd.quantisers.upload import Upload
from fetchsgd.server.rounds import Merged
from fetchsgd.wire import (
    DenseVector,
    Floats,
    Integers,
    Payload,
    Quantised,
    SketchTable,
    SparseUpdate,
    Values,
    WireError,
    decode,
)
from fetchsgd.wire.rans import histogram
from fetchsgd.wire.sizes import HEADER_BYTES, floats_bytes, position_bytes, quantised_bytes


@dataclass(frozen=True)
class Expected:
    """What an honest reply of this round looks like, and the limits for all others."""

    method: Method
    upload: Upload
    digest: str
    lineage: str
    round: int
    by_examples: bool
    max_norm: float = 0.0
    clip_norm: float = 0.0
    max_examples: int = 1_000_000


@dataclass(frozen=True)
class Accepted:
    """A reply that has passed: its numbers, and what they count."""

    numbers: Tensor  # a table, a vector, or the values at `places`
    places: Tensor | None
    weight: float
    examples: int  # that the client claims
    loss: float
    norm: float  # of `numbers`, see length()
    predicted_bytes: float  # as the ledger counts, to compare with what was measured


def judge(answer: Answer, client: int, expected: Expected) -> Accepted:
    """The reply of the client that was asked, or RejectedError."""
    _check_header(answer, client, expected)
    payload = _decoded(answer.payload, expected)
    values = _check_payload(payload, expected)
    numbers = values.dequantise() if isinstance(values, Quantised) else values.values.float()
    if not bool(numbers.isfinite().all()) or not math.isfinite(answer.loss):
        raise RejectedError("not_finite", "the reply holds numbers that are not finite")
    if isinstance(payload, SketchTable):
        numbers = numbers.view(payload.rows, payload.cols)
    numbers = _within_norm(numbers, expected)
    places = payload.indices if isinstance(payload, SparseUpdate) else None
    weight = float(answer.examples) if expected.by_examples else 1.0
    return Accepted(
        numbers, places, weight, answer.examples, answer.loss, length(numbers),
        predicted_bytes(payload),
    )  # fmt: skip


def _check_header(answer: Answer, client: int, expected: Expected) -> None:
    if answer.digest != expected.digest:
        raise RejectedError(
            "settings",
            "the client has other settings or other initial weights; are the versions of fetchsgd "
            "and torch the same, and the task?",
        )
    if answer.lineage != expected.lineage or answer.round != expected.round:
        raise RejectedError(
            "round", f"the reply is of round {answer.round}, asked was {expected.round}"
        )
    if answer.client != client:
        raise RejectedError("round", f"client {client} was asked, client {answer.client} replies")
    if not 1 <= answer.examples <= expected.max_examples:
        raise RejectedError(
            "examples",
            f"the client claims {answer.examples} examples; from 1 to federation.max_examples = "
            f"{expected.max_examples} are believed",
        )


def longest_payload(method: Method) -> int:
    """Bytes of numbers with as many positions, and some more: no honest payload is longer."""
    return 8 * numbers_up(method) + 4096


def _decoded(data: bytes, expected: Expected) -> Payload:
    most = longest_payload(expected.method)
    if len(data) > most:
        raise RejectedError("shape", f"the payload has {len(data)} bytes, at most {most} may be")
    try:
        return decode(data)
    except WireError as error:
        raise RejectedError("undecodable", str(error)) from error


def numbers_up(method: Method) -> int:
    return method.k if isinstance(method, LocalMethod) else method.numbers_up


def _check_payload(payload: Payload, expected: Expected) -> Floats | Quantised:
    """The values of a payload of just the right kind and size."""
    method = expected.method
    if isinstance(method, FetchSGD):
        right = isinstance(payload, SketchTable) and _same_sketch(payload, method)
    elif isinstance(method, LocalMethod):
        right = (
            isinstance(payload, SparseUpdate)
            and payload.dim == method.dim
            and len(payload.indices) <= method.k
        )
    else:
        right = isinstance(payload, DenseVector) and _count(payload.values) == method.dim
    if not right:
        raise RejectedError("shape", "the payload is of another kind or size")
    if payload.round != expected.round:
        raise RejectedError(
            "round", f"the payload is of round {payload.round}, asked was {expected.round}"
        )
    return _check_values(payload.values, expected.upload.bits)


def _same_sketch(payload: SketchTable, method: FetchSGD) -> bool:
    s = method.sketch
    if (payload.dim, payload.rows, payload.cols) != (s.dim, s.rows, s.cols):
        return False
    if (payload.block, payload.seed) != (s.block, s.seed):
        raise RejectedError("seed", "the sketch has another hash: its seed or block differs")
    return True


def _check_values(values: Values, bits: int) -> Floats | Quantised:
    dtypes = {32: torch.float32, 16: torch.bfloat16}
    if isinstance(values, Quantised) and values.bits == bits:
        return values
    if isinstance(values, Floats) and values.values.dtype == dtypes.get(bits):
        return values
    raise RejectedError("shape", f"the payload's numbers are not of upload.bits = {bits}")


def _count(values: Values) -> int:
    return values.count if isinstance(values, Quantised) else len(values.values)


def length(numbers: Tensor) -> float:
    """The norm of a vector, or of the longest row of a table.

    Every row of an honest table is about as long as the vector that it sketches. By a median over
    rows, half of them could be as long as they like.
    """
    rows = torch.linalg.vector_norm(numbers.double().view(-1, numbers.shape[-1]), dim=1)
    return float(rows.max()) if rows.numel() else 0.0


def _within_norm(numbers: Tensor, expected: Expected) -> Tensor:
    """Reject what is longer than is allowed at all, and clip the rest if that is asked for."""
    if not expected.max_norm and not expected.clip_norm:
        return numbers
    norm = length(numbers)
    if expected.max_norm and norm > expected.max_norm:
        raise RejectedError(
            "norm", f"its norm is {norm:.3g}, above federation.max_norm = {expected.max_norm:g}"
        )
    clip = expected.clip_norm
    return numbers * (clip / norm) if clip and norm > clip else numbers


def predicted_bytes(payload: Payload) -> float:
    """The size of the message as the simulator would count it."""
    values = payload.values
    assert not isinstance(values, Integers)
    if isinstance(values, Quantised):
        counts = torch.from_numpy(histogram(values.symbols.cpu().numpy()))[None]
        size = HEADER_BYTES + float(quantised_bytes(counts, values.bits, values.count)[0])
    else:
        size = HEADER_BYTES + float(floats_bytes(len(values.values), values.values.dtype))
    if isinstance(payload, SparseUpdate):
        size += float(position_bytes(payload.dim, torch.tensor([len(payload.indices)]))[0])
    return size


class RunningMean:
    """The weighted sum of what has been accepted so far, and nothing else of it."""

    def __init__(self, method: Method, device: torch.device) -> None:
        shape: tuple[int, ...] = (method.dim,)
        if isinstance(method, FetchSGD):
            shape = (method.sketch.rows, method.sketch.cols)
        self.total: Float64[Tensor, ...] = torch.zeros(shape, dtype=torch.float64, device=device)
        self.weight = 0.0
        self.numbers = 0
        self.predicted_bytes = 0.0
        self.losses: list[tuple[float, float]] = []
        # The median over the last rounds, set when the round is closed: a few clients must not make
        # a run look as if it had diverged.
        self.typical_loss = math.nan

    def __len__(self) -> int:
        return len(self.losses)

    def add(self, reply: Accepted) -> None:
        numbers = reply.numbers.to(self.total.device, torch.float64)
        if reply.places is None:
            self.total.add_(numbers, alpha=reply.weight)
            self.numbers += numbers.numel()
        else:
            self.total.index_add_(
                0, reply.places.to(self.total.device), numbers, alpha=reply.weight
            )
            self.numbers += int(numbers.count_nonzero())
        self.weight += reply.weight
        self.predicted_bytes += reply.predicted_bytes
        self.losses.append((reply.loss, reply.weight))

    def merged(self) -> Merged:
        """As the simulator's clients hand it over."""
        mean: Float32[Tensor, ...] = (self.total / self.weight).float()
        loss = sum(loss * weight for loss, weight in self.losses) / self.weight
        return Merged(mean, self.numbers, self.predicted_bytes, torch.tensor(loss))
