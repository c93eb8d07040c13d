"""Apple's pfl: its SimulatedBackend, FederatedAveraging over a PyTorch model.

    python apple_pfl.py THREADS                                          in this process
    python -m torch.distributed.run --nproc-per-node 2 apple_pfl.py 1    in two

There is no evaluation but one before the first round, which pfl insists on and which is not timed;
metrics are not handed to the platform, which would print them.
"""

from __future__ import annotations

import sys
import time
from itertools import chain, count

import setting
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module as get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Digits(nn.Module):
    """The network with the two functions that pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.network = setting.network()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return setting.mean_loss(self.network(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        total = self.loss(inputs, targets).item() * len(targets)
        return {"loss": Weighted(total, len(targets))}


class Clock(TrainingProcessCallback):
    """The time at which each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        del aggregate_metrics, model, central_iteration
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    everyone = [Dataset(raw_data=setting.client(i)) for i in range(setting.sampler().num_clients)]
    order = chain.from_iterable(setting.sampler().cohort(t) for t in count())
    data = FederatedDataset(everyone.__getitem__, lambda: next(order))
    module = Digits()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    rounds = setting.WARM_UP + setting.ROUNDS
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=setting.COHORT,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=setting.RATE, local_batch_size=None
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank == 0:
        setting.print_result("pfl, fedavg", clock.ends, module.network, ["pfl"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
