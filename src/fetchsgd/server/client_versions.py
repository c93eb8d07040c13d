"""A version for each client, 0 for all that have not been seen: memory follows those that have.

Few clients are a plain array. Of many, only those that were ever seen are kept, in a hash table
with open addresses, until a plain array would be no larger. Looking up and storing a cohort costs
the same whatever the population.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FEW = 1 << 16  # clients: a plain array of so many is not worth a thought
FIRST_SLOTS = 1 << 10
FULLEST = 0.7  # of a table, beyond which searches become long
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NOBODY = -1

Numbers = NDArray[np.int64]


class ClientVersions:
    """Of clients 0 to `len` - 1; like an array of zeros that was written to here and there.

    >>> versions = ClientVersions(10_000_000)
    >>> versions.put(np.array([7, 9_999_999]), 3)
    >>> versions[7], versions[8], versions.nbytes < 20_000
    (3, 0, True)
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._seen = 0
        self._keys: NDArray[np.int64] | None = None  # of the table's slots; None for a plain array
        self._values = np.zeros(clients if clients <= FEW else FIRST_SLOTS, np.int32)
        if clients > FEW:
            self._keys = np.full(FIRST_SLOTS, NOBODY, np.int64)

    def __len__(self) -> int:
        return self._clients

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._keys is None else self._keys.nbytes)

    def __getitem__(self, client: int) -> int:
        return int(self.get(np.array([client]))[0])

    def __setitem__(self, client: int, version: int) -> None:
        self.put(np.array([client]), version)

    def get(self, clients: Numbers) -> Numbers:
        """Their versions."""
        self._check(clients)
        if self._keys is None:
            return self._values[clients].astype(np.int64)
        slots, found = self._find(self._keys, clients)
        return np.where(found, self._values[slots], 0).astype(np.int64)

    def put(self, clients: Numbers, version: int | Numbers) -> None:
        """From now on these clients have this version, or these versions."""
        self._check(clients)
        self._make_room(len(clients))
        slots = clients if self._keys is None else self._claim(self._keys, clients)
        self._values[slots] = version

    def for_clients(self, clients: int) -> ClientVersions:
        """The same with room for so many clients, not fewer than there are."""
        wider = ClientVersions(clients)
        seen, versions = self._listed()
        wider.put(seen, versions)
        return wider

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save: all versions, or who has been seen and with which."""
        if self._keys is None:
            return {"": torch.from_numpy(self._values.astype(np.int64))}
        seen, versions = self._listed()
        return {
            ".of": torch.tensor(self._clients),
            ".seen": torch.from_numpy(seen),
            ".versions": torch.from_numpy(versions),
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> ClientVersions:
        """From what `tensors` has returned."""
        if "" in tensors:
            all_versions = tensors[""].cpu().numpy()
            versions = cls(len(all_versions))
            seen = np.flatnonzero(all_versions)
            versions.put(seen, all_versions[seen])
        else:
            versions = cls(int(tensors[".of"]))
            versions.put(tensors[".seen"].cpu().numpy(), tensors[".versions"].cpu().numpy())
        return versions

    def _check(self, clients: Numbers) -> None:
        if len(clients) and not 0 <= clients.min() <= clients.max() < self._clients:
            raise IndexError(f"clients are numbered from 0 to {self._clients - 1}")

    def _listed(self) -> tuple[Numbers, Numbers]:
        """Who has been seen, in order, and with which versions."""
        if self._keys is None:
            seen = np.flatnonzero(self._values)
            return seen, self._values[seen].astype(np.int64)
        taken = np.flatnonzero(self._keys != NOBODY)
        taken = taken[self._keys[taken].argsort()]
        return self._keys[taken], self._values[taken].astype(np.int64)

    def _make_room(self, more: int) -> None:
        """For so many clients that may be new."""
        if self._keys is None or self._seen + more <= FULLEST * len(self._keys):
            return
        seen, versions = self._listed()
        slots = 1 << int((self._seen + more) / FULLEST).bit_length()
        bytes_each = self._keys.itemsize + self._values.itemsize
        if slots * bytes_each >= self._clients * self._values.itemsize:
            self._keys, self._values = None, np.zeros(self._clients, np.int32)
            self._values[seen] = versions
            return
        self._keys, self._values = np.full(slots, NOBODY, np.int64), np.zeros(slots, np.int32)
        self._seen = 0
        self._values[self._claim(self._keys, seen)] = versions

    def _claim(self, keys: NDArray[np.int64], clients: Numbers) -> Numbers:
        """The slots of these clients, of whom the new ones get one each."""
        slots, found = self._find(keys, clients)
        looking = np.flatnonzero(~found)
        while len(looking):
            # Several may want one empty slot: the last one to write has it, and others go on.
            wanted = slots[looking]
            keys[wanted] = np.where(keys[wanted] == NOBODY, clients[looking], keys[wanted])
            looking = looking[keys[wanted] != clients[looking]]
            slots[looking] = (slots[looking] + 1) % len(keys)
        self._seen += len(np.unique(clients[~found]))
        return slots

    def _find(self, keys: NDArray[np.int64], clients: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """The slot of each client, or the first empty one where it would be; and which it is."""
        shift = np.uint64(64 - (len(keys).bit_length() - 1))
        slots = (clients.astype(np.uint64) * GOLDEN >> shift).astype(np.int64)
        looking = np.arange(len(clients))
        while len(looking):
            held = keys[slots[looking]]
            looking = looking[(held != NOBODY) & (held != clients[looking])]
            slots[looking] = (slots[looking] + 1) % len(keys)
        return slots, keys[slots] == clients
