"""What a run trains with, set up from its settings: the same for a simulation and a federation.

No data is on the device yet: a simulation moves what its clients need there, a real server only
what it evaluates with, a real client only its own. A client never reads the test set.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fetchsgd.clients.inner import first_rows, with_inner
from fetchsgd.clients.trainer import Trainer
from fetchsgd.errors import UserError, from_os
from fetchsgd.methods import Memory, Method, Upload
from fetchsgd.methods.messages import LinearMessage
from fetchsgd.privacy import Limit
from fetchsgd.quantisers import Quantiser, SharedStep
from fetchsgd.randomness import number
from fetchsgd.ranks import ALONE, Ranks
from fetchsgd.ranks.joining import device_of
from fetchsgd.runs.distributed import private_levels
from fetchsgd.runs.environment import choose_device, compute_dtype
from fetchsgd.runs.settings import Config
from fetchsgd.server.grids import Grid
from fetchsgd.server.ledger import Ledger
from fetchsgd.server.rounds import Training
from fetchsgd.server.sampling import Sampler
from fetchsgd.sums import Modular
from fetchsgd.tasks import HeldOut, Task
from fetchsgd.tasks.checks import check_module
from fetchsgd.trees import Tree, tree_map
from fetchsgd.vector import FlatModel

MEMORY_LIMIT = 8 << 30


class Setup:
    """Model, method, quantiser, grid, trainer and schedule.

    clients: how many there are; 0 takes those of the task. ranks: processes that train together.
    """

    def __init__(self, config: Config, clients: int = 0, ranks: Ranks = ALONE) -> None:
        self.config, self.ranks = config, ranks
        self.device = device_of(ranks, choose_device(config.train.device))
        if self.device.type == "cuda":
            # Matrix products as torch does convolutions by default: in TF32.
            torch.set_float32_matmul_precision("high")
        task, train = config.task, config.train
        self.model = FlatModel(initial_model(task, train.seed).to(self.device))
        self.origin = self.model.weights()  # w^0 (line 2)
        self.method = make_method(config, self.model.dim)
        self.quantiser: Quantiser = config.quantiser
        is_biased = getattr(self.quantiser, "biased", False)
        if is_biased and not getattr(self.method.message, "keeps_rounding", False):
            raise UserError(
                "upload.quantiser = 'two_bits' rounds to the nearest, which is not right in the "
                f"mean, and the clients of {config.method} do not keep what it rounds off; take "
                "'bits', 'step' or 'shared_step', or method.name = 'sparse_loco'"
            )
        if isinstance(self.quantiser, Modular):
            self._check_sums()
            if self.quantiser.secure:
                self.quantiser.safety(train.clients_per_round)
        self.grid = make_grid(config, self.model.sizes, self.origin)
        self.decay = self._decay_by_server()
        is_decoupled = config.local.optimizer == "adamw"
        self.trainer = Trainer(
            self.model,
            task.loss,
            0.0 if self.decay or is_decoupled else train.weight_decay,
            compute_dtype(train.dtype, self.device),
            graphs=train.cuda_graphs and self.device.type == "cuda",
            rounded=train.dtype == "bfloat16_weights",
            decoupled_decay=train.weight_decay if is_decoupled else 0.0,
        )
        self.sampler = Sampler(
            clients or task.train.num_clients, train.clients_per_round, train.sampling, train.seed,
            train.leaving, train.leave_every,
        )  # fmt: skip
        self.rounds = max(round(train.epochs * self.sampler.rounds_per_epoch), 1)
        self._check_workers()
        numbers = self.method.message.numbers
        self.levels = private_levels(config, self.sampler, self.rounds, numbers)

    def _check_workers(self) -> None:
        there, needed = self.sampler.num_clients, self.sampler.needed(self.rounds)
        if needed > there:
            train = self.config.train
            raise UserError(
                f"train.leaving = {train.leaving} every {train.leave_every} rounds takes {needed} "
                f"clients in {self.rounds} rounds, and there are {there}: those who leave do not "
                "come back"
            )

    def _decay_by_server(self) -> float:
        """The weight decay that the server adds; 0 if clients do, or if there is none."""
        train, can = self.config.train, self.method.message.linear
        can = can and self.config.local.is_one_gradient
        if train.weight_decay_by == "server" and not can:
            raise UserError(
                "train.weight_decay_by = 'server' needs clients that send one gradient each, in "
                "messages that add up; leave it out"
            )
        chosen = train.weight_decay_by == "server" or (
            train.weight_decay_by == "auto" and can and not self.quantiser.exact
        )
        return train.weight_decay if chosen else 0.0

    def _check_sums(self) -> None:
        if not isinstance(self.method.message, LinearMessage):
            raise does_not_add_up(self.config.method)

    def start(self) -> Training:
        """w^0, empty states, and a ledger in which everybody holds w^0."""
        downloads = self.grid.downloads()
        clients = self.sampler.num_clients
        ledger = Ledger.new(self.model.dim, clients, self.rounds, downloads, self.device)
        place = self.grid.start(self.origin)
        return Training(0, place, self.method.init(self.device), ledger)

    def memory(self) -> Memory | None:
        """What all clients of a simulation remember before the first round."""
        probe = self._memory_of(1, torch.device("cpu"))
        if probe is None:
            return None
        clients = self.sampler.num_clients
        size = clients * sum(part.nbytes for part in probe.values())
        if size > MEMORY_LIMIT:
            raise UserError(
                f"what clients remember ({', '.join(probe)}) would take {size / 1e9:.1f} GB "
                f"({clients} clients, {self.model.dim} weights); let them remember nothing "
                "(method.local_error, method.local_momentum, local.state), or take a smaller task"
            )
        return self._memory_of(clients, self.device)

    def _memory_of(self, clients: int, device: torch.device) -> Memory | None:
        inner = first_rows(self.config.local, clients, self.model.dim, device)
        return with_inner(self.method.message.first_memory(clients, device), inner)

    def rate(self, round: int) -> float:
        return self.config.schedule.rate(round, self.rounds, self.config.train.baseline_epochs)

    @property
    def server_rate(self) -> float | None:
        """Local steps have taken their rate on the client."""
        local = self.config.local
        return None if local.is_one_gradient else local.outer_rate

    def upload(self, round: int, size: float | Tensor | None = None) -> Upload:
        """How clients round in a round: by the run's seed, the round and the client alone.

        `size` of the numbers that clients have sent, for quantisers that go by it.
        """
        quantiser = self.quantiser
        if size is not None and isinstance(quantiser, SharedStep):
            quantiser = quantiser.for_size(size)
        limit = None
        if isinstance(quantiser, Modular):
            key, per_round = number(self.config.train.seed, "rotate", round), self.sampler.per_round
            private = None if self.levels is None else self.levels.of_round(round)
            quantiser = quantiser.for_round(key, size, per_round, private)
            if private is not None:
                limit = Limit(self.config.privacy.clip, 1 / per_round)
        key = number(self.config.train.seed, "quantise", round)
        return Upload(quantiser, key, round, limit)

    def test_data(self) -> tuple[Tree, Tree]:
        """Test inputs and targets, on the device."""
        test = load_test_data(self.config.task)
        inputs, targets = (
            tree_map(lambda part: part.to(self.device), tree)
            for tree in (test.inputs, test.targets)
        )
        return inputs, targets


def does_not_add_up(method: str) -> UserError:
    """For sums of messages of which there is no sum."""
    return UserError(
        f"upload.sum = 'modular' needs messages that add up, and those of {method} do not: each "
        "client chooses what it sends; take fetchsgd, true_topk, uncompressed or fedavg"
    )


def initial_model(task: Task, seed: int) -> nn.Module:
    """The task's model with w^0, which follows from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, "weights"))
        return check_module(task.model(), task.name)


def load_test_data(task: Task) -> HeldOut:
    """The test set, or a UserError for files that cannot be read."""
    try:
        return task.test_data
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise from_os(f"the test set of the task {task.name!r} cannot be read", error) from error


def make_method(config: Config, dim: int) -> Method:
    """The method for a model of this many weights, or a UserError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are among the notes
        try:
            method: Method = config.parts["method.name"].made(dim=dim)
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
    return method


def make_grid(config: Config, sizes: Sequence[int], origin: Tensor) -> Grid:
    """The grid that the weights are on, or a UserError. `sizes`: of the model's tensors."""
    try:
        grid: Grid = config.grid.made(tuple(sizes), origin)
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error
    return grid
