"""What a method is: what clients send, and what the server does with the mean of it.

    message                        what a client sends, its size, and how replies add up
    init(device)                   the server's state before the first round
    step(mean, state, rate, ...)   the server's part: what is sent back, and the state afterwards

    has_server_error = True        the server carries momentum and error, which can be diagnosed
    needs_local_steps = True       one gradient per client is not enough ([local] epochs)
    message_kind                   "sketch", "chosen" or "chunked": what `--budget` may choose

The last three are optional class attributes. A method is a frozen dataclass. Its first field is
`dim`, the weights of the model; the others are its options, the settings `method.*`. A method of
your own is named in the settings as `package.module:Class`, and most need nothing but one of the
messages of messages.py.

Where weights are quantised, `deliver` turns what a method wants to send into what is sent, and
the method keeps what is left in its error (delivery.py).

The local work that yields the vectors (one gradient, or the difference after local steps) is the
same for all methods and lives in fetchsgd.clients.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.messages import Message
from fetchsgd.sketch import CountSketch

State = dict[str, Tensor]  # what the server carries from round to round; names are the method's


class Method(Protocol):
    """One way to train."""

    dim: int

    @property
    def message(self) -> Message:
        """What clients send."""
        ...

    @property
    def notes(self) -> list[str]:
        """What the user should know about these options; ones that cannot work are refused."""
        ...

    def init(self, device: torch.device) -> State: ...

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        round: int = 0,
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        """The server's part of round `round`, counted from 0.

        `check_finite=False` leaves out the search for NaN, which waits for the device.
        """
        ...


class WithServerError(Method, Protocol):
    """A method whose server carries momentum and error, which can be diagnosed (fetchsgd.diagnose).

    Such a class says so with `has_server_error = True`.
    """

    momentum: float
    mask_momentum: bool

    @property
    def sketch(self) -> CountSketch | None:
        """S, if momentum and error are carried inside a sketch; None if they are vectors."""
        ...

    @property
    def single_error(self) -> bool:
        """Whether there is one error, not several as with a sliding window."""
        ...

    @property
    def clears_error(self) -> bool:
        """Whether what is sent is cleared from the error, and not subtracted."""
        ...

    def rates(self, rate: float) -> tuple[float, float]:
        """The rate in front of the momentum, and the rate at the update."""
        ...


def check_mean(mean: Tensor, shape: tuple[int, ...], check_finite: bool) -> None:
    """Refuse what is not the mean of such messages."""
    if tuple(mean.shape) != shape or mean.dtype != torch.float32:
        raise ValueError(
            f"mean must be float32 of shape {shape}, the mean of what clients send; "
            f"got {str(mean.dtype).removeprefix('torch.')} of shape {tuple(mean.shape)}"
        )
    if check_finite and not math.isfinite(float(mean.sum())) and not bool(mean.isfinite().all()):
        raise ValueError(f"mean has {int((~mean.isfinite()).sum())} cells that are not finite")


def nothing(device: torch.device) -> Float32[Tensor, " 0"]:
    """A part of the state that has not been needed yet."""
    return torch.zeros(0, device=device)


def deliver_dense(
    wanted: Float32[Tensor, " dim"], error: Tensor, deliver: Deliver
) -> tuple[Delivered, Tensor]:
    """For methods that keep no error of their own: what is sent, and what the grid leaves over."""
    if deliver.exact:
        return deliver(wanted), error
    if len(error):
        wanted = wanted + error
    sent = deliver(wanted)
    return sent, wanted - sent.dense


def momentum_step(
    rho: float, mean: Tensor, state: State, rate: float, deliver: Deliver, nesterov: bool = False
) -> tuple[Delivered, State]:
    """SGD with momentum rho on the server; what a grid rounds off is kept in the error."""
    momentum = rho * state["momentum"] + mean
    step = ahead(rho, momentum, mean) if nesterov else momentum
    sent, error = deliver_dense(rate * step, state["error"], deliver)
    return sent, {"momentum": momentum, "error": error}


def ahead(rho: float, momentum: Tensor, mean: Tensor) -> Tensor:
    """Nesterov's step, in torch.optim's form: along the momentum as the next round will have it."""
    return torch.add(mean, momentum, alpha=rho)


def check_nesterov(nesterov: bool, momentum: float) -> None:
    """Refuse Nesterov's step without momentum."""
    if nesterov and not momentum:
        raise ValueError("method.nesterov needs a method.momentum above 0")


def momentum_state(dim: int, device: torch.device) -> State:
    """Before the first `momentum_step`."""
    return {"momentum": torch.zeros(dim, device=device), "error": nothing(device)}


def require_range(name: str, value: float, low: float, high: float) -> None:
    """The sentence for an option that is out of range."""
    if not low <= value <= high:
        raise ValueError(f"method.{name} must be from {low:g} to {high:g}, got {value}")
