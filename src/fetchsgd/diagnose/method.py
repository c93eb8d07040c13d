"""`Diagnosed`: a method that is looked at while it trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from fetchsgd.diagnose.noise import Seen, is_single, noise
from fetchsgd.diagnose.notebook import Notebook
from fetchsgd.diagnose.shadow import Shadow
from fetchsgd.diagnose.sliding import SlidingSums
from fetchsgd.diagnose.spaces import Dense, Scalar, Sketched, Space, energy
from fetchsgd.methods import FetchSGD
from fetchsgd.methods.base import State, WithServerError, check_mean
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered, Update
from fetchsgd.methods.messages import LinearMessage, Rounded, Vectors, flatten
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.vector import SparseVector

RARE = 4  # what walks over the estimates of several rows is measured this many times as rarely
SAMPLE = 1024  # coordinates whose estimates are compared with what they estimate


@dataclass
class Watched:
    """Delivers as another does, and remembers what was wanted."""

    deliver: Deliver
    wanted: Update | None = None

    @property
    def exact(self) -> bool:
        return self.deliver.exact

    def __call__(self, wanted: Update) -> Delivered:
        self.wanted = wanted
        return self.deliver(wanted)


class Diagnosed:
    """Does what the method does, to the bit, and takes notes that never make the host wait.

    every: measure once in this many rounds. window: I of Definition 1; sums of gradients are
        measured whenever a multiple of `every` is over that is no shorter than the window, and
        four times as rarely where that takes long.
    exact: carry dense momentum and error beside those of the paper's FetchSGD. The vectors that
        `compress` sees in a round must then add up to the mean: not client by client, nor scaled
        afterwards. With fresh hashes: compare with the true gradient; clients may be one by one.
    """

    def __init__(
        self, method: WithServerError, every: int = 10, window: int = 8, exact: bool = True
    ) -> None:
        self.method, self.every, self.round = method, every, 0
        self.dim, self.momentum = method.dim, method.momentum
        message = method.message
        assert isinstance(message, LinearMessage), "what is sketched is linear"
        self.message = replace(message, watcher=self._see)
        self.book = Notebook()
        self.fresh = method if isinstance(method, FetchSGD) and method.is_fresh else None
        self.sketch = None if self.fresh else method.sketch
        self.exact = exact and self.sketch is not None
        self.sees_truth = exact and self.fresh is not None
        self.space: Space = Dense()
        pause = every
        if self.sketch is not None and not exact:
            self.space = Sketched(self.sketch)
            # To walk over the estimates of several rows may take as long as a small gradient.
            pause *= RARE if self.sketch.rows > 1 else 1
        self.sums = SlidingSums(window, pause * -(-window // pause))
        self.has_q = method.single_error  # a sliding window has many errors, and so no q^t
        self.shadow: Shadow | None = None
        self.gradient: Tensor | None = None  # of this round, as far as it has been compressed
        self.has_compared = False  # estimates with the truth, in this round
        self.seen: Seen | None = None  # of this round, with fresh hashes

    @property
    def notes(self) -> list[str]:
        return self.method.notes

    def init(self, device: torch.device) -> State:
        return self.method.init(device)

    def _see(self, vectors: Vectors, sent: Tensor, rounded: Rounded | None = None) -> None:
        """What clients compress, and what it became."""
        if self.sees_truth and self._measures:
            part = Seen.of(vectors, sent, rounded)
            self.seen = part if self.seen is None else self.seen.plus(part)
        compares = self._measures and self.sketch is not None and not self.has_compared
        if not self.exact and not compares:
            return
        whole = vectors[0].flatten() if is_single(vectors) else flatten(vectors)
        if self.exact:
            assert whole.ndim == 1, "clients one by one say nothing of their mean"
            self.gradient = whole if self.gradient is None else self.gradient + whole
        if compares and self.sketch is not None:
            # Where clients are sketched one by one, the first of them stands for all.
            vector, table = (whole, sent) if whole.ndim == 1 else (whole[0], sent[0])
            self.book.note("estimation_error", estimation_error(self.sketch, vector, table))
            self.has_compared = True

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
        watched = Watched(deliver)
        if self.fresh is None:
            sent, after = self.method.step(
                mean, state, rate, watched, round=round, check_finite=check_finite
            )
        else:
            check_mean(mean, self.message.shape, check_finite)
            reading = self.fresh.read(mean, state, round)
            sent, after = self.fresh.send(reading, state, rate, watched, round)
            if self._measures:
                found = noise(reading, self.fresh.sketch.for_round(round), mean, self.seen)
                for name, value in found:
                    self.book.note(name, value)
            mean, self.seen = reading.estimate, None
        if isinstance(watched.wanted, SparseVector):
            self._look(mean, state, after, self.method.rates(rate), watched.wanted, sent.sparse)
        else:  # without k nothing is chosen, so there is nothing to say of the choice
            self.round += 1
        return sent, after

    # --- beside the training (fetchsgd.runs.recorder)

    def line(self) -> dict[str, float]:
        """What was measured since the last line of the metrics."""
        return self.book.means()

    def result(self) -> dict[str, float]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold for a resumed run to go on with the same numbers."""
        kept = {f"sum.{length}": total for length, total in self.sums.sums.items()}
        kept |= {f"book.{name}": torch.stack(page) for name, page in self.book.pages.items()}
        if self.shadow is not None:
            kept |= {"momentum": self.shadow.momentum, "error": self.shadow.error}
        return {"round": torch.tensor(self.round), **kept}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `tensors` has returned."""
        self.round = int(tensors["round"])
        for name, part in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "sum":
                self.sums.sums[int(rest)] = part
            elif kind == "book":
                self.book.pages[rest] = list(part.unbind())
        if "error" in tensors:
            self.shadow = Shadow(self.method, tensors["momentum"], tensors["error"])

    @property
    def _measures(self) -> bool:
        return (self.round + 1) % self.every == 0

    def _look(
        self,
        mean: Tensor,
        state: State,
        after: State,
        rates: tuple[float, float],
        found: SparseVector,
        given: SparseVector,
    ) -> None:
        """All that there is to see in a round. `found` is C(q) at the rate outside."""
        inside, outside = rates
        back = 1 / outside if outside else 0.0
        is_exact, found = given is found, found * back
        given = found if is_exact else given * back
        shadow = self._follow(inside)
        if self._measures:
            momentum = self.momentum * state["momentum"] + mean  # u, line 11
            if self.method.mask_momentum:
                self.book.note("masked_share", 1 - energy(after["momentum"]) / energy(momentum))
            if self.has_q:
                q = inside * momentum + state["error"]  # line 12
                self.book.note("error_left", energy(after["error"]) / energy(q))
                q = q if shadow is None else shadow.error
                self.book.note("heaviest_share", self.space.heaviest_share(q, found))
                self.book.note("contraction", self.space.contraction(q, found))
        if shadow is not None:
            shadow.remove(found, given)
        self.round += 1
        if self.fresh is not None:  # what is decoded is mostly noise, and says little of sums
            return
        sums = self.sums.add(mean if self.gradient is None else self.gradient, self.round)
        if sums:
            shares = [self.space.heaviest_share(total) for total in sums]
            self.book.note("sliding_share", torch.stack(shares).amax())
        self.gradient, self.has_compared = None, False

    def _follow(self, inside: float) -> Shadow | None:
        """The shadow with this round's gradient in it, if there is one."""
        if not self.exact or not self.has_q:
            return None
        assert self.gradient is not None
        if self.shadow is None:
            self.shadow = Shadow.new(self.method, self.gradient.device)
        self.shadow.add(self.gradient, inside)
        return self.shadow


def estimation_error(sketch: CountSketch, vector: Float32[Tensor, " dim"], table: Table) -> Scalar:
    """The root mean square of U(table) - vector over a sample of coordinates, over |vector|."""
    at = sampled(sketch.dim, vector.device)
    errors = sketch.query(table, at) - vector[at]
    return (errors.square().mean() / energy(vector)).sqrt()


@lru_cache(maxsize=4)
def sampled(dim: int, device: torch.device) -> Int64[Tensor, " n"]:
    """The same coordinates in every round and every run."""
    return torch.randint(dim, (SAMPLE,), generator=torch.Generator().manual_seed(0)).to(device)
