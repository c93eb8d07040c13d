"""The server: rounds of FetchSGD, and a test at the end."""

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fetchsgd.flower.own_app import federate
from quickstart import task
from quickstart.plan import plan

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    server = federate(grid, plan(config), fraction=config["fraction-train"])
    net = server.model()
    _, test = task.load_data(0, 1)
    print(f"test accuracy {task.test(net, test):.3f}; bytes up and down {server.traffic.messages}")
    torch.save(net.state_dict(), "model.pt")
