"""The server: rounds of federated averaging, and a test at the end."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    net = task.Net()
    strategy = FedAvg(fraction_train=config["fraction-train"], fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=config["num-server-rounds"],
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    _, test = task.load_data(0, 1)
    print(f"test accuracy {task.test(net, test):.3f}")
    torch.save(net.state_dict(), "model.pt")
