"""The server of a loop of your own: weights, the method's state, and who holds which version."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.exchange.dispatch import Dispatch
from fetchsgd.exchange.frames import from_frame, to_frame
from fetchsgd.exchange.merging import Expected, RobustMean, RunningMean, judge
from fetchsgd.exchange.messages import Answer, Content, ResendRequest
from fetchsgd.exchange.plan import Plan
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.runs.checkpoint import CheckpointWriter, load_checkpoint, need_safetensors
from fetchsgd.runs.files import CHECKPOINT
from fetchsgd.runs.merging import make_merger, refuse_attack
from fetchsgd.server.rounds import Training, after_round

MAX_RESENT = 2  # times in a round and for a client
LEAST_ROOM = 64  # rounds and clients
OWN, MERGING = "exchange", "merge"  # in checkpoints


@dataclass(frozen=True)
class Stepped:
    """A round that is over: who took part, and their mean loss before it."""

    round: int
    clients: tuple[int, ...]
    loss: float
    rate: float


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients together, up and down.

    paper: as the paper counts them, four for each number that is not zero. wire: payloads, as a
    simulation counts them. messages: every byte of all requests, and of the replies that counted.
    """

    paper: tuple[int, int]
    wire: tuple[int, int]
    messages: tuple[int, int]


class Server:
    """Algorithm 1's server, for clients that you hold: bytes go out, bytes come in.

    In each round, `request` bytes for the clients of your choice, hand what each of them answers
    to `receive`, and `step`. Clients are numbered from 0, and there may always be new ones. One
    that was away is sent what it has missed, in one message.

    Args:
        plan: what server and clients have in common.

    >>> import torch, fetchsgd as fs
    >>> plan = fs.Plan(lambda: torch.nn.Linear(2, 1), "uncompressed", schedule={"peak": 0.1})
    >>> server = fs.Server(plan)
    >>> server.round, len(server.request(7))
    (0, 145)
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lineage = secrets.token_hex(8)
        self._up = self._down = 0
        self._has_diverged = False
        refuse_attack(plan.setup.config)
        self._merger = make_merger(plan.setup)
        start = plan.setup.start()
        self._training = replace(start, ledger=start.ledger.for_clients(LEAST_ROOM))
        self._open_round()

    def _open_round(self) -> None:
        plan, setup, training = self.plan, self.plan.setup, self._training
        room = _room(plan, training.round)
        if room >= len(training.ledger.changed_in):
            training = self._training = replace(training, ledger=training.ledger.for_rounds(room))
        self._dispatch = Dispatch(training, plan.rate(training.round), plan.digest, self.lineage)
        self._mean = RunningMean(setup.method.message, setup.device)
        if self._merger is not None:
            self._merger.open(training.round, [])
            self._mean = RobustMean(setup.method.message, setup.device, self._merger)
        self._asked: set[int] = set()
        self._resent: dict[int, int] = {}
        self._expected = Expected(
            setup.method.message, setup.quantiser, plan.digest, self.lineage, training.round,
            setup.config.train.averaging == "examples",
        )  # fmt: skip

    @property
    def round(self) -> int:
        """How many rounds are over; also the version of the weights."""
        return self._training.round

    @property
    def weights(self) -> Float32[Tensor, " dim"]:
        """All trained weights as one vector, in the order of the model's parameters."""
        return self._training.weights

    @property
    def replies(self) -> tuple[int, ...]:
        """The clients whose replies to this round have been merged."""
        return tuple(self._mean.losses)

    @property
    def traffic(self) -> Traffic:
        """What has been sent so far, by three counts."""
        ledger = self._training.ledger
        return Traffic(ledger.bytes, ledger.wire_bytes, (self._up, self._down))

    def model(self) -> nn.Module:
        """A copy of the model with the weights of now, on the CPU."""
        return self.plan.setup.model.copy_with(self.weights)

    def request(self, client: int, held: int | None = None) -> bytes:
        """The bytes that ask a client to take part in this round.

        Args:
            client: its number, which stays the same for the whole training.
            held: the version that the client says it holds, 0 if it holds nothing; without it, the
                server goes by what it has sent before. If that is wrong the client says so.
        """
        if isinstance(client, bool) or not isinstance(client, int) or client < 0:
            raise UserError(f"client must be a whole number of at least 0, got {client!r}")
        self._refuse_if_diverged()
        self._make_room_for(client)
        if held is not None:
            self._dispatch.correct(client, self.lineage, held)
        self._asked.add(client)
        return self._sent(client)

    def _make_room_for(self, client: int) -> None:
        ledger = self._training.ledger
        if client >= len(ledger.held):
            ledger = ledger.for_clients(1 << client.bit_length())
            self._training = replace(self._training, ledger=ledger)
            self._dispatch.training = self._training

    def _sent(self, client: int) -> bytes:
        frame = to_frame(self._dispatch.work(client))
        self._down += len(frame)
        return frame

    def receive(self, reply: bytes, client: int | None = None) -> bytes | None:
        """Take a client's reply into this round.

        Args:
            reply: the bytes that `client_update` has returned.
            client: who it came from, where your transport knows; a reply in another's name is
                then rejected.

        Returns:
            None, or another request for the same client, if it holds another version than it was
            believed to: it has lost its state, say.

        Raises:
            RejectedError: the bytes are damaged, of another round or plan, or not asked for. Then
                nothing has changed, and a good reply may still come.
        """
        content: Content = from_frame(reply, Answer, ResendRequest)
        assert isinstance(content, Answer | ResendRequest)
        self._check(content, client)
        if isinstance(content, ResendRequest):
            return self._send_again(content)
        self._mean.add(content.client, judge(content, content.client, self._expected))
        self._up += len(reply)
        return None

    def _check(self, content: Answer | ResendRequest, client: int | None) -> None:
        number, round = content.client, self.round
        if client is not None and number != client:
            raise RejectedError("round", f"client {client} replies in the name of client {number}")
        if content.digest != self.plan.digest:
            raise RejectedError("settings", "the client has another plan, or other initial weights")
        if content.lineage != self.lineage:
            raise RejectedError(
                "round", "the reply is to another server, or to an earlier training"
            )
        if content.round != round:
            raise RejectedError("round", f"the reply is of round {content.round}, not {round}")
        if number not in self._asked:
            raise RejectedError("round", f"client {number} was not asked in round {round}")
        if number in self._mean.losses:
            raise RejectedError("round", f"client {number} has replied to round {round} already")

    def _send_again(self, asks: ResendRequest) -> bytes:
        client = asks.client
        self._resent[client] = self._resent.get(client, 0) + 1
        if self._resent[client] > MAX_RESENT:
            raise RejectedError(
                "round", f"client {client} cannot be brought to version {self.round}"
            )
        self._dispatch.correct(client, asks.lineage, asks.held)
        return self._sent(client)

    def step(self) -> Stepped:
        """End the round: apply the mean of the replies, and go on to the next version.

        Raises:
            UserError: nobody has replied.
            DivergedError: a weight would no longer be finite; the server keeps those of before.
        """
        self._refuse_if_diverged()
        if not len(self._mean):
            raise UserError(
                f"no client has replied to round {self.round}: hand replies to server.receive "
                "before server.step"
            )
        setup, rate = self.plan.setup, self.plan.rate(self.round)
        merged = self._mean.merged()
        self._dispatch.believe(self._mean.losses)
        self._dispatch.close()
        step = rate if setup.server_rate is None else setup.server_rate
        after = after_round(self._training, merged, step, setup.method, setup.grid, setup.decay)
        if not bool(after.weights.isfinite().all()):
            self._has_diverged = True
            self._refuse_if_diverged()
        done = Stepped(self.round, self.replies, float(merged.loss), rate)
        self._training = after
        self._open_round()
        return done

    def _refuse_if_diverged(self) -> None:
        """The ledger knows of a version that there will never be."""
        if self._has_diverged:
            raise DivergedError(
                f"round {self.round} would make a weight infinite; try a lower schedule.peak, a "
                "wider sketch or a smaller k"
            )

    def save(self, folder: str | Path) -> None:
        """Into a file of that folder, atomically; replies to an open round are not saved.

        Save after a step, before requests leave: then no client ever holds a version that a server
        which is loaded would make anew.
        """
        need_safetensors()
        self._refuse_if_diverged()
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        names = bytes.fromhex(self.lineage + self.plan.digest)
        own = {
            "about": torch.tensor(list(names), dtype=torch.uint8),
            "sent": torch.tensor([self._up, self._down]),
        }
        writer = CheckpointWriter(path)
        beside = {OWN: own}
        beside |= {} if self._merger is None else {MERGING: self._merger.tensors()}
        writer.save(self._training, 0.0, beside)
        writer.close()

    @classmethod
    def load(cls, plan: Plan, folder: str | Path) -> Server:
        """The server as it was saved; clients that it has served go on with their states."""
        server = cls(plan)
        found = load_checkpoint(
            Path(folder), server._with_room(folder), plan.setup.grid.downloads(), plan.setup.device
        )
        if found is None or OWN not in found.beside:
            raise UserError(f"{folder} holds no server that was saved")
        about = bytes(found.beside[OWN]["about"].tolist()).hex()
        if about[16:] != plan.digest:
            raise UserError(f"{folder} holds a server with another plan, or other initial weights")
        server.lineage, server._training = about[:16], found.training
        server._up, server._down = found.beside[OWN]["sent"].tolist()
        if server._merger is not None and MERGING in found.beside:
            server._merger.restore(found.beside[MERGING])
        server._open_round()
        return server

    def _with_room(self, folder: str | Path) -> Training:
        """The beginning, with as much room for rounds as the server had that was saved."""
        need_safetensors()
        from safetensors import SafetensorError, safe_open

        path = Path(folder) / CHECKPOINT
        try:
            with safe_open(path, "pt") as file:
                round = int(file.metadata()["round"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder} holds no server that was saved: {error}") from error
        ledger = self._training.ledger.for_rounds(_room(self.plan, round))
        return replace(self._training, ledger=ledger)


def _room(plan: Plan, round: int) -> int:
    """For how many rounds the ledger has room while this one is open."""
    return max(plan.rounds or 0, LEAST_ROOM, 1 << (round + 1).bit_length())
