import pytest
import torch

from fetchsgd.config import resolve
from fetchsgd.rounds import train_rounds
from fetchsgd.simulate import Run


def train(method, *sets, rounds=8):
    run = Run(resolve({"method": {"name": method}}, ["device=cuda", *sets]))
    steps = train_rounds(
        run.start(), rounds, run.sampler.cohort, run.rate, run.clients, run.method, None
    )
    trained = [(training.weights, merged.loss) for training, merged in steps]
    return torch.stack([w for w, _ in trained]), torch.stack([loss for _, loss in trained])


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["uncompressed", "fetchsgd"])
def test_recorded_equals_launched_one_by_one(method):
    """Cohorts of two shapes: the last of an epoch is smaller."""
    sets = (
        ("clients_per_round=100", "k=2000") if method == "fetchsgd" else ("clients_per_round=100",)
    )
    recorded, losses = train(method, *sets)
    launched, plain_losses = train(method, *sets, "cuda_graphs=false")
    torch.testing.assert_close(losses, plain_losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded, launched, rtol=1e-2, atol=1e-4)
