"""Who a client is in secure aggregation, and what it answers, with what it keeps on its disk.

A server that asks the same again gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import UInt32, UInt64
from numpy import ndarray

from fetchsgd.errors import UserError
from fetchsgd.flower.identities import own_directory, own_identity
from fetchsgd.flower.secure.state import Kept, SecureFolder, digest_of, secure_folder
from fetchsgd.secure import Client, Policy, RefusedError, Terms
from fetchsgd.secure.frames import read_header
from fetchsgd.secure.keys import noise_key
from fetchsgd.secure.kinds import Kind
from fetchsgd.secure.messages import read_invitation

# What a node insists on, whatever the server would like; --node-config may say otherwise.
POLICY = Policy(clients=3, colluding=0.0, dropping=0.5, security_bits=40, group=2)
POLICY_KEYS = {
    "secure-clients": "clients",
    "secure-colluding": "colluding",
    "secure-dropping": "dropping",
    "secure-bits": "security_bits",
    "secure-group": "group",
}


@dataclass(frozen=True)
class SecureParticipant:
    """One client, with what it keeps in its folder. lineage: of the server's run."""

    client: Client
    folder: SecureFolder
    lineage: str = ""

    @classmethod
    def of(
        cls, number: int, node_config: Mapping[str, Any], lineage: str = ""
    ) -> SecureParticipant:
        """As the node config says, or a sentence."""
        folder = secure_folder(node_config, number)
        identity = own_identity(node_config, number)
        directory = own_directory(node_config, number)
        if identity is None or directory is None:
            missing = "identity" if identity is None else "directory"
            raise UserError(
                f"secure aggregation needs this client's key and the directory of all, and "
                f"{missing} is missing; start the SuperNode with --node-config 'partition-id="
                f"""{number} identity="keys/client-{number}" directory="keys/directory.json"'"""
            )
        own = identity.public_key().public_bytes_raw()
        if directory.get(number) != own:
            raise UserError(
                f"the directory has another key for client {number} than this node's identity"
            )
        policy = policy_of(node_config)
        client = Client(number, identity, directory, folder.journal(), policy)
        return cls(client, folder, lineage)

    def answer(self, message: bytes) -> bytes:
        """To any message but a delivery, which needs a vector."""
        if (again := self.answered(message)) is not None:
            return again
        kind, _, _ = read_header(message)
        if kind is Kind.INVITATION:
            state, answer = self.client.join(message)
        elif kind is Kind.ROSTER:
            state, answer = self.client.share(self._kept().state, message)
        elif kind is Kind.SURVIVORS:
            state, answer = self.client.agree(self._kept().state, message)
        elif kind is Kind.REQUEST:
            _, answer = self.client.reveal(self._kept().state, message)
            self.folder.delete()
            return answer
        else:
            raise RefusedError(f"a message of the kind {kind} is not for clients, or needs work")
        self.folder.save(Kept(state, digest_of(message), answer, self.lineage))
        return answer

    def mask(
        self,
        delivery: bytes,
        cells: UInt32[ndarray, " cells"],
        totals: UInt64[ndarray, " totals"],
        context: bytes,
    ) -> bytes:
        """`context`: of what the vector was computed from, which must be the same for all."""
        state, answer = self.client.mask(self._kept().state, delivery, cells, totals, context)
        self.folder.save(Kept(state, digest_of(delivery), answer, self.lineage))
        return answer

    def answered(self, message: bytes) -> bytes | None:
        """The same as before, to the same message as before."""
        kept = self.folder.load()
        return None if kept is None or kept.asked != digest_of(message) else kept.answer

    @property
    def terms(self) -> Terms:
        """Of the round that this client has joined."""
        return read_invitation(self._kept().state.invitation, self.client.number)

    def noise_key(self) -> bytes:
        """Secret, and the same if the client is interrupted and masks again."""
        return noise_key(self._kept().state.seed, self.terms, self.client.number).reveal()

    def _kept(self) -> Kept:
        kept = self.folder.load()
        if kept is None:
            raise RefusedError(
                f"client {self.client.number} has no part in this round: it has not joined, has "
                "ended it, or has lost its state"
            )
        return kept


def policy_of(node_config: Mapping[str, Any]) -> Policy:
    """The least that this node insists on."""
    given = {name: node_config.get(key, getattr(POLICY, name)) for key, name in POLICY_KEYS.items()}
    for key, name in POLICY_KEYS.items():
        value, wanted = given[name], type(getattr(POLICY, name))
        is_right = type(value) in ((int, float) if wanted is float else (int,))
        if not is_right or value < 0 or (wanted is float and value >= 1):
            which = "a fraction from 0 up to 1" if wanted is float else "a whole number"
            raise UserError(f"{key} in the node config must be {which}, got {value!r}")
    return Policy(**given)
