"""What the server and its clients agree on."""

import fetchsgd as fs
from quickstart import task


def plan(config: dict) -> fs.Plan:
    return fs.Plan(
        task.Net,
        {"name": "fetchsgd", "k": 2000, "cols": 5000, "momentum": 0.0},
        rounds=config["num-server-rounds"],
        schedule={"peak": config["lr"]},
        local={"epochs": config["local-epochs"]},
        quantiser=fs.Step(tau=1.0),
        grid="steps",
        averaging="examples",
    )
