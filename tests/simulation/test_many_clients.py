"""Memory is flat in the population and in the cohort, ledger and all; in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

TRIAL = """
import json, resource, sys
import torch
torch.set_num_threads(1)
import fetchsgd
population, cohort = map(int, sys.argv[1:])
task = {"name": "many_clients:crowd", "clients": population}
epochs = 2 * cohort / population
fetchsgd.simulate(task, "fetchsgd", clients_per_round=1000, epochs=2000 / population)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = fetchsgd.simulate(
    task, "fetchsgd", clients_per_round=cohort, epochs=epochs, eval_every=epochs
)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"kilobytes": grown, "rounds": found.rounds}))
"""


def test_ten_thousand_of_ten_million():
    """A number for each client would be 80 MB, and the examples of a cohort another ten."""
    done = subprocess.run(
        [sys.executable, "-c", TRIAL, "10000000", "10000"],
        cwd=EXAMPLES, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["rounds"] == 2
    assert found["kilobytes"] < 60_000
