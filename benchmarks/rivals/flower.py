"""Flower's own simulation: ServerApp and ClientApp on the Ray backend, with the FedAvg strategy.

Two actors of one core each work in parallel. Each loads data and model once, and the app travels by
reference. The server looks for replies every millisecond instead of every tenth of a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from functools import lru_cache

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import setting
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

client_app, server_app = ClientApp(), ServerApp()


@lru_cache
def local_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    module = setting.network()
    return module, torch.optim.SGD(module.parameters(), lr=setting.RATE)


@client_app.train()
def train(message: Message, _context: Context) -> Message:
    module, optimizer = local_model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = setting.client(int(message.content["config"]["client"]))
    optimizer.zero_grad()
    setting.mean_loss(module(inputs), targets).backward()
    optimizer.step()
    sent = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"weight": 1.0}),
    }
    return Message(RecordDict(sent), reply_to=message)


class TimedFedAvg(FedAvg):
    """Flower's FedAvg; it notes when each round ended."""

    def __init__(self) -> None:
        super().__init__(
            fraction_train=0.01,  # the minimum decides
            min_train_nodes=setting.COHORT,
            fraction_evaluate=0.0,
            weighted_by_key="weight",
        )
        self.ends: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every node is told which client of our cohort to be."""
        del config
        cohort = setting.sampler().cohort(server_round - 1)
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"client": int(client)})}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for client, node in zip(cohort, grid.get_node_ids(), strict=False)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        assert len(replies) == setting.COHORT, f"{len(replies)} clients replied"
        assert not any(reply.has_error() for reply in replies), "a client failed"
        merged = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return merged


@server_app.main()
def serve(grid: Grid, _context: Context) -> None:
    grid.pull_interval = 0.001
    strategy, module = TimedFedAvg(), setting.network()
    result = strategy.start(
        grid, ArrayRecord(module.state_dict()), setting.WARM_UP + setting.ROUNDS
    )
    module.load_state_dict(result.arrays.to_torch_state_dict())
    setting.print_result("flower, fedavg", strategy.ends, module, ["flwr", "ray"])


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=setting.sampler().num_clients,
        backend_config={
            "init_args": {"num_cpus": 2, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    # Under its own name: what is defined in __main__ is sent to the actors by value each time.
    import flower

    flower.main()
