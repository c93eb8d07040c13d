"""Ways to deal a labelled set out to clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def one_class(
    labels: NDArray[np.int64], per_client: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The client of each example: `per_client` examples of a single class each (section 5.1).

    The last client of a class holds fewer where the class does not divide evenly.
    """
    client_of = np.empty(len(labels), dtype=np.int64)
    clients = 0
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        client_of[members] = clients + np.arange(len(members)) // per_client
        clients += -(-len(members) // per_client)
    return client_of


def iid(
    labels: NDArray[np.int64], per_client: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The client of each example, dealt out without regard to labels."""
    client_of = np.empty(len(labels), dtype=np.int64)
    client_of[generator.permutation(len(labels))] = np.arange(len(labels)) // per_client
    return client_of


SPLITS = {"one_class": one_class, "iid": iid}
