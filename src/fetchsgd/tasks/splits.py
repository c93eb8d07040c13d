"""Ways to deal a labelled set out to clients, and the settings of tasks that choose one.

The paper's clients hold images of a single class (section 5.1). Clients may also hold some of each
class, or mixtures in between (Hsu et al., arXiv:1909.06335), and their sizes may follow a power
law: many that hold little and a few that hold much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

# From the number of examples to deal out to the sizes of clients, which add up to it; none is 0.
Sizes = Callable[[int, np.random.Generator], NDArray[np.int64]]
# From labels to the client of each example.
Deal = Callable[[NDArray[np.int64], Sizes, np.random.Generator], NDArray[np.int64]]

SPLITS = ("one_class", "iid", "dirichlet")
SIZES = ("equal", "power_law")


@dataclass(frozen=True)
class Split:
    """A task's settings of these names; `most` is the largest examples_per_client it allows."""

    split: str
    examples_per_client: int
    alpha: float
    sizes: str
    exponent: float
    most: int

    def __post_init__(self) -> None:
        per_client = self.examples_per_client
        for key, known in (("split", SPLITS), ("sizes", SIZES)):
            if (value := getattr(self, key)) not in known:
                raise ValueError(f"task.{key} must be one of {', '.join(known)}, got {value!r}")
        if not 1 <= per_client <= self.most:
            raise ValueError(
                f"task.examples_per_client must be from 1 to {self.most}, got {per_client}"
            )
        for key in ("alpha", "exponent"):
            if not ((value := getattr(self, key)) > 0 and math.isfinite(value)):
                raise ValueError(f"task.{key} must be above 0, got {value}")
        if self.sizes == "power_law" and per_client == 1:
            raise ValueError(
                'task.sizes = "power_law" needs task.examples_per_client, the mean of the sizes, '
                "to be at least 2, got 1"
            )

    def clients(
        self, labels: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """The client of each example."""
        per_client = self.examples_per_client
        sizes: dict[str, Sizes] = {
            "equal": partial(equal, per_client=per_client),
            "power_law": partial(power_law, per_client=per_client, exponent=self.exponent),
        }
        deals: dict[str, Deal] = {
            "one_class": one_class,
            "iid": iid,
            "dirichlet": partial(dirichlet, alpha=self.alpha),
        }
        return deals[self.split](labels, sizes[self.sizes], generator)


def one_class(
    labels: NDArray[np.int64], sizes: Sizes, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The client of each example: each client's are of a single class (section 5.1).

    The last client of a class holds fewer where the class does not divide evenly.
    """
    client_of = np.empty(len(labels), dtype=np.int64)
    clients = 0
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        own = sizes(len(members), generator)
        client_of[members] = clients + owners(own)
        clients += len(own)
    return client_of


def iid(
    labels: NDArray[np.int64], sizes: Sizes, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The client of each example, dealt out without regard to labels."""
    client_of = np.empty(len(labels), dtype=np.int64)
    client_of[generator.permutation(len(labels))] = owners(sizes(len(labels), generator))
    return client_of


def dirichlet(
    labels: NDArray[np.int64], sizes: Sizes, generator: np.random.Generator, alpha: float
) -> NDArray[np.int64]:
    """The client of each example: classes by a mixture of each client's own (Hsu et al., 2019).

    Mixtures come from Dirichlet(alpha * p), where p is the share of each class in the set: nearly
    one class a client for a small alpha, the whole set's shares for a large one. Clients choose one
    after another, so that the last ones must take what the others have left.
    """
    _, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    wanted = sizes(len(labels), generator)
    mixtures = generator.dirichlet(alpha * counts / len(labels), len(wanted))
    left = counts.astype(np.int64)
    taken = np.empty((len(wanted), len(counts)), dtype=np.int64)
    for client, size in enumerate(wanted):
        taken[client] = draw_classes(mixtures[client], int(size), left, generator)
        left -= taken[client]
    client_of = np.empty(len(labels), dtype=np.int64)
    for number in range(len(counts)):
        members = generator.permutation(np.flatnonzero(class_of == number))
        client_of[members] = owners(taken[:, number])
    return client_of


def draw_classes(
    mixture: NDArray[np.float64],
    size: int,
    left: NDArray[np.int64],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """How many of each class a client takes. What a class no longer has is drawn from the rest."""
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        shares = np.where(left > taken, mixture, 0.0)
        if shares.sum() == 0.0:
            # All classes that are left have a share that rounds to 0: take one of them.
            open_classes = np.flatnonzero(left > taken)
            shares[generator.choice(open_classes)] = 1.0
        taken += generator.multinomial(missing, shares / shares.sum())
        taken = np.minimum(taken, left)
    return taken


def owners(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For clients of these sizes, who owns the first example, the second, and so on."""
    return np.repeat(np.arange(len(sizes)), sizes)


def equal(total: int, generator: np.random.Generator, per_client: int) -> NDArray[np.int64]:  # noqa: ARG001
    """The same size for all; the last client has what is left."""
    sizes = np.full(-(-total // per_client), per_client, dtype=np.int64)
    sizes[-1] = total - per_client * (len(sizes) - 1)
    return sizes


def power_law(
    total: int, generator: np.random.Generator, per_client: int, exponent: float
) -> NDArray[np.int64]:
    """Sizes s with chances in proportion to s^-exponent, from 1 to the bound that fits the mean.

    The bound is the least for which the mean reaches `per_client`. Without one, the largest client
    would own a good part of the whole set at exponents below 2. The last client has what is left.
    """
    sizes = np.arange(1, total + 1)
    chances = sizes**-exponent
    means = np.cumsum(sizes * chances) / np.cumsum(chances)
    bound = int(np.searchsorted(means, per_client)) + 1
    if bound > total:
        raise ValueError(
            f"task.examples_per_client = {per_client} is out of reach: sizes up to {total} that "
            f"follow a power law with task.exponent = {exponent:g} have a mean of {means[-1]:.3g}"
        )
    chances = chances[:bound] / chances[:bound].sum()
    drawn = generator.choice(sizes[:bound], size=total, p=chances)
    ends = np.cumsum(drawn)
    last = int(np.searchsorted(ends, total))
    drawn[last] -= ends[last] - total
    return drawn[: last + 1]
