"""What clients round in a simulated run, and the bytes that it counts."""

import numpy as np
import pytest
import torch

from fetchsgd.quantisers.levels import Rounding, quantise
from fetchsgd.randomness import number
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

COHORT = np.array([7, 2, 9, 4, 0])
METHODS = ["fetchsgd", "true_topk", "local_topk", "uncompressed", "fedavg"]


def make(method, *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("method", METHODS)
def test_each_client_rounds_its_own_payload(method, bits):
    """The server's mean is that of the clients' quantised messages, never a quantised mean."""
    run = make(method, f"bits={bits}")
    weights, round = run.setup.model.weights(), 5
    merged = run.cohort(weights, COHORT, 0.1, round, None)
    expected = torch.zeros_like(merged.mean)
    for client in COHORT:
        alone = make(method).cohort(weights, np.array([client]), 0.1, round, None).mean
        cells, places = alone.flatten(), slice(None)
        if method == "local_topk":
            places = cells.nonzero().squeeze(1)
        rounding = Rounding(number(0, "quantise", round), int(client))
        sent = torch.zeros_like(cells)
        sent[places] = quantise(cells[places], bits, rounding).floats()
        expected += sent.view(expected.shape) / len(COHORT)
    step = merged.mean.abs().max() / (2 ** (bits - 1) - 1)
    # Gradients of a client alone differ in the last bits, which may tip a rounding or two.
    off = (merged.mean - expected).abs()
    assert (off > 1e-5).float().mean() < 0.02
    assert off.max() <= 1.1 * step


@pytest.mark.parametrize("method", METHODS)
def test_fewer_bits_count_for_the_wire_and_not_for_the_paper(method, tmp_path):
    results = {bits: make(method, f"bits={bits}").execute(tmp_path / str(bits)) for bits in (32, 8)}
    paper = [result["upload_bytes"] for result in results.values()]
    assert paper[0] == pytest.approx(paper[1], rel=0.05)  # zeros are not counted by the paper
    if method != "local_topk":  # its 20 values do not fill a run
        assert results[8]["wire_upload_bytes"] < results[32]["wire_upload_bytes"]
