"""FetchSGD: clients send sketches of their gradients, the server sends what is to change.

`hash = "fixed"` is Algorithm 1 of the paper: one hash for the whole run, so that momentum and error
can be carried inside a sketch (in_sketch.py). Coordinates that share a cell share it for ever.

`hash = "fresh"` draws the hash anew in each round, from the seed and the round's number. The server
decodes it (decoding.py), and carries momentum and error as vectors (in_vectors.py), so that
collisions become noise that averages out over rounds. Clients need the number of the round and
nothing else; sketches stay linear, so a server that sees only sums can do all of it. There is no
need for top-k any more, which the paper has to tell signal from collisions: with k = 0 the server
sends all that has moved by a whole step of the weights' grid (docs/results.md has what that gains).
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fetchsgd.methods.base import State, check_mean, require_range
from fetchsgd.methods.decoding import Decoder, Prior, Reading, Unbiased
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.in_pieces import PiecesServer
from fetchsgd.methods.in_sketch import SketchServer
from fetchsgd.methods.in_vectors import VectorServer
from fetchsgd.methods.messages import SketchMessage
from fetchsgd.methods.reading_pieces import read_in_pieces
from fetchsgd.methods.windowed import Form, check_tau, check_window, make_window, window_notes
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.count_sketch import default_block
from fetchsgd.sketch.hashing import MAX_BLOCKS
from fetchsgd.sketch.windows import SlidingWindow

# With one hash for the whole run and long blocks neighbours err together: on CIFAR10 at 20 weights
# to a cell all runs with blocks of 64 and more diverged, most with 16, and none with 4 or 1
# (experiments/cifar10/blocks.toml). With a fresh hash in every round they do not: blocks of 1 to
# 256 on digits, and of 4 to 1024 on CIFAR10, differ by no more than seeds do
# (rows_and_blocks.toml of both).
SAFE_BLOCK = {"fixed": 4, "fresh": 16}
ONE_ROW = (
    "method.error_reset = 'subtract' diverges with one row: all coordinates of a cell tie, and "
    "each of them subtracts the whole cell; use 'zero', or three or more rows"
)
# Options of the paper's form, with the values that mean nothing.
PAPERS: dict[str, object] = {
    "error": "vanilla",
    "error_reset": "zero",
    "lr_position": "inside",
    "recovery": "top_k",
}
# The same for those of fresh hashes.
FRESH: dict[str, object] = {
    "decode": "auto",
    "noise_limit": 2.5,
    "revisit": 1.0,
    "revisit_rounds": 100,
    "state_bits": 32,
    "nesterov": False,
}


@dataclass(frozen=True)
class FetchSGD:
    """Algorithm 1 of the paper, and what became of it.

    hash: "fresh", a new one in every round, or "fixed", one for the whole run as in the paper.
    k: coordinates that are sent in a round; 0, with fresh hashes: all that moves (in_vectors.py).
    cols: columns of the sketch.
    decode: how a server with fresh hashes reads a sketch (decoding.py): "prior", or "unbiased";
        "auto" takes "prior" where it can, which needs one row.
    noise_limit: what is decoded is at most this many times as long as the gradient.
    revisit, revisit_rounds, nesterov: as in in_vectors.py; for fresh hashes.
    state_bits: of each number that a server with fresh hashes carries from round to round, 32, or
        16, which are rounded at random: half the memory (in_pieces.py).

    All others are of the paper's form, but for k, momentum and mask_momentum:

    error_reset: what line 14 does to the cells of what is sent. "zero" clears them, as the paper's
        experiments do; "subtract" is the line as written, which diverges with one row.
    mask_momentum: also clear those cells of the momentum (momentum factor masking).
    lr_position: "inside", in front of the momentum as in line 12, or "outside", at the update.
    error: "vanilla" sums up what was not sent in one sketch, as the paper's experiments do;
        "window" does so over a sliding window, as theorem 2 (fetchsgd.sketch.windows says how, and
        what "subtract" then means).
    window: how many rounds it covers, I.
    window_form: "overlapping", I sketches, or "histogram", O(log I / window_eps) of them.
    recovery: "top_k", or "threshold", as in theorem 2's proof: only what makes up at least tau of
        the error's norm, and of that the k largest.

    >>> method = FetchSGD(dim=1000, k=1, cols=100, hash="fixed")
    >>> gradient = torch.zeros(1000)
    >>> gradient[500] = 4.0
    >>> table = method.message.compress(gradient)  # what a client sends
    >>> sent, state = method.step(table, method.init(torch.device("cpu")), rate=0.1)
    >>> table.shape, len(sent.update)
    (torch.Size([1, 100]), 1)
    """

    dim: int
    _: KW_ONLY
    k: int = 0
    cols: int
    rows: int = 1
    momentum: float = 0.9
    error_reset: Literal["zero", "subtract"] = "zero"
    mask_momentum: bool = True
    lr_position: Literal["inside", "outside"] = "inside"
    block: int = 0  # 0 chooses: at most SAFE_BLOCK, and less for small tables
    sketch_seed: int = 0
    error: Literal["vanilla", "window"] = "vanilla"
    window: int = 0
    window_form: Form = "overlapping"
    window_eps: float = 0.5
    recovery: Literal["top_k", "threshold"] = "top_k"
    tau: float = 0.0
    hash: Literal["fresh", "fixed"] = "fresh"
    decode: Literal["auto", "prior", "unbiased"] = "auto"
    noise_limit: float = 2.5
    revisit: float = 1.0
    revisit_rounds: int = 100
    state_bits: Literal[32, 16] = 32
    nesterov: bool = False
    sketch: CountSketch = field(init=False, repr=False, compare=False)  # S and U
    windows: SlidingWindow | None = field(init=False, repr=False, compare=False, default=None)

    has_server_error: ClassVar[bool] = True
    message_kind: ClassVar[str] = "sketch"

    def __post_init__(self) -> None:
        require_range("k", self.k, 0 if self.is_fresh or self.k == 0 else 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        if not 0 <= self.sketch_seed < 2**64:
            raise ValueError(
                f"method.sketch_seed must be from 0 to 2^64 - 1, got {self.sketch_seed}"
            )
        if self.error_reset == "subtract" and self.rows == 1:
            warnings.warn(ONE_ROW, stacklevel=3)
        check_window(self.error, self.window, self.window_eps)
        check_tau(self.recovery, self.tau)
        self._refuse_nonsense()
        block = self.block or self._suitable_block()
        kind: Literal["permutation", "blocks"] = "permutation" if self.is_fresh else "blocks"
        try:
            sketch = CountSketch(self.dim, self.rows, self.cols, self.sketch_seed, block, hash=kind)
        except ValueError as error:
            named = str(error).startswith(("rows", "cols", "block"))
            raise ValueError(f"method.{error}" if named else str(error)) from error
        object.__setattr__(self, "sketch", sketch)
        if self.error == "window":
            windows = make_window(sketch, self.window_form, self.window, self.window_eps)
            object.__setattr__(self, "windows", windows)

    def _suitable_block(self) -> int:
        """As long as is safe; longer for models of so many weights that there is no choice."""
        block = min(default_block(self.cols), SAFE_BLOCK[self.hash])
        while -(-self.dim // block) > MAX_BLOCKS and 2 * block <= self.cols:
            block *= 2
        return block

    def _refuse_nonsense(self) -> None:
        if self.is_fresh:
            for name, usual in PAPERS.items():
                if (given := getattr(self, name)) != usual:
                    raise ValueError(
                        f"method.{name} = {given!r} is about an error inside a sketch, and with "
                        "method.hash = 'fresh' it is a vector; leave it out, or take the paper's "
                        "form, method.hash = 'fixed'"
                    )
            if self.decode == "prior" and self.rows > 1:
                raise ValueError(
                    f"method.decode = 'prior' reads one row, got method.rows = {self.rows}; "
                    "one row of as many cells says more than several"
                )
            if self.k == 0 and self.revisit != 1:
                raise ValueError(
                    f"method.revisit = {self.revisit:g} says which coordinates are chosen first, "
                    "and with method.k = 0 all are sent; leave it out, or give k"
                )
            require_range("noise_limit", self.noise_limit, 1, 1e6)
            _ = self.in_vectors  # which checks the rest
            return
        if self.k == 0:
            raise ValueError(
                "method.hash = 'fixed' needs method.k, how many coordinates are sent in a round: "
                "inside a sketch with one hash for the whole run, top-k is what tells signal from "
                "collisions, and method.k = 0 would send all"
            )
        for name, usual in FRESH.items():
            if (given := getattr(self, name)) != usual:
                raise ValueError(
                    f"method.{name} = {given!r} needs method.hash = 'fresh': with one hash for the "
                    "whole run, momentum and error are carried inside the sketch"
                )

    @property
    def is_fresh(self) -> bool:
        return self.hash == "fresh"

    @property
    def decoder(self) -> Decoder:
        """How a sketch is read, with fresh hashes."""
        prior = self.decode == "prior" or (self.decode == "auto" and self.rows == 1)
        return Prior(self.noise_limit) if prior else Unbiased(self.noise_limit)

    @property
    def notes(self) -> list[str]:
        notes = [ONE_ROW] if self.error_reset == "subtract" and self.rows == 1 else []
        if self.sketch.num_cells >= self.dim:
            notes.append(
                f"the table ({self.rows} x {self.cols} cells) is no smaller than the model "
                f"({self.dim} weights): clients send at least as much as without compression"
            )
        if self.windows is not None:
            notes += window_notes(self.windows, self.momentum, self.window_eps)
        return notes

    @property
    def message(self) -> SketchMessage:
        return SketchMessage(self.sketch, self.is_fresh)  # line 8

    def init(self, device: torch.device) -> State:
        if self.is_fresh:
            dtype = torch.float32 if self.state_bits == 32 else torch.bfloat16
            learned = self.decoder.init(self.dim, device, dtype)
            return {**self.in_vectors.init(device, dtype), **learned}
        return self.in_sketch.init(device)

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
        check_mean(mean, self.message.shape, check_finite)
        if not self.is_fresh:
            return self.in_sketch.send(mean, state, self.rates(rate), deliver)
        if self.state_bits != 32:
            own = {name: part.clone() for name, part in state.items()}
            return self.overwriting_step(mean, own, rate, deliver, round=round, check_finite=False)
        return self.send(self.read(mean, state, round), state, rate, deliver, round)

    def overwriting_step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        round: int = 0,
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        """The same step in the memory of the state that is given, and without vectors beside it.

        For large models. What `step` sends it sends too, up to rounding (in_pieces.py).
        """
        if not self.is_fresh:
            return self.step(mean, state, rate, deliver, round=round, check_finite=check_finite)
        check_mean(mean, self.message.shape, check_finite)
        read = read_in_pieces(self.decoder, self.sketch.for_round(round), mean, state, round)
        v = self.in_vectors
        server = PiecesServer(
            v.dim, v.k, v.momentum, v.mask_momentum, v.revisit, v.revisit_rounds, v.nesterov
        )
        return server.send(read, state, rate, deliver, round), state

    def read(self, mean: Tensor, state: State, round: int) -> Reading:
        """What a round's sketch says of the mean gradient, with fresh hashes."""
        return self.decoder.read(self.sketch.for_round(round), mean, state)

    def send(
        self, reading: Reading, state: State, rate: float, deliver: Deliver, round: int
    ) -> tuple[Delivered, State]:
        """The rest of a step, with fresh hashes."""
        sent, carried = self.in_vectors.send(reading.estimate, state, rate, deliver, round)
        return sent, {**carried, **reading.learned}

    @property
    def in_sketch(self) -> SketchServer:
        return SketchServer(
            self.sketch, self.k, self.momentum, self.error_reset, self.mask_momentum,
            self.windows, self.recovery, self.tau,
        )  # fmt: skip

    @property
    def in_vectors(self) -> VectorServer:
        return VectorServer(
            self.dim, self.k, self.momentum, self.mask_momentum, self.revisit, self.revisit_rounds,
            self.nesterov,
        )  # fmt: skip

    @property
    def single_error(self) -> bool:
        return self.windows is None

    @property
    def clears_error(self) -> bool:
        return self.error_reset == "zero"

    def rates(self, rate: float) -> tuple[float, float]:
        """The rate in front of the momentum, and the rate at the update."""
        return (rate, 1.0) if self.lr_position == "inside" else (1.0, rate)
