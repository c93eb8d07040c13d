"""Every client rounds its own numbers, means stay right, and counted bytes are those sent."""

import numpy as np
import pytest
import torch

from fetchsgd.quantisers.levels import Rounding, quantise
from fetchsgd.quantisers.upload import Upload
from fetchsgd.randomness import number
from fetchsgd.runs.settings import resolve
from fetchsgd.simulate import Run
from fetchsgd.wire import Floats, SketchTable, SparseUpdate, encode

LOW_BITS = [16, 8, 6, 4, 3, 2]
COHORT = np.array([7, 2, 9, 4, 0])
METHODS = ["fetchsgd", "true_topk", "local_topk", "uncompressed", "fedavg"]


def make(method, *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


@pytest.mark.parametrize("bits", LOW_BITS)
def test_the_mean_over_many_rounds_is_the_mean_of_the_cohort(bits):
    """Unbiased: the 300 means are all within 6 standard errors but once in a million."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 300, generator=generator)
    weights, clients = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4, 99, 10**9])
    upload = Upload(bits, seed=3)
    sums = torch.stack([upload.merge(rows, weights, clients, t)[0] for t in range(1000)]).double()
    off = sums.mean(0) - (weights @ rows).double()
    # Between two levels a step apart the variance is at most that of half the step.
    step = rows.abs().max() * (2.0**-8 if bits == 16 else 1.01 / (2 ** (bits - 1) - 1))
    error = weights.norm() * step / 2 / 1000**0.5
    assert off.abs().max() < 6 * error
    assert sums.std(0).max() > 0


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("method", METHODS)
def test_each_client_rounds_its_own_payload(method, bits):
    """The server's mean is that of the clients' quantised messages, never a quantised mean."""
    run = make(method, f"bits={bits}")
    weights, round = run.model.weights(), 5
    merged = run.clients(weights, COHORT, 0.1, round, None)
    expected = torch.zeros_like(merged.mean)
    for client in COHORT:
        alone = make(method).clients(weights, np.array([client]), 0.1, round, None).mean
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


def test_a_client_rounds_alike_whoever_else_takes_part():
    upload, rows = Upload(2, seed=1), torch.randn(4, 700)
    one = torch.ones(1)
    together, _ = upload.merge(rows, torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.arange(4) + 10, 8)
    alone, _ = upload.merge(rows[2:3].contiguous(), one, torch.tensor([12]), 8)
    assert torch.equal(together, alone)
    other_round, _ = upload.merge(rows[2:3].contiguous(), one, torch.tensor([12]), 9)
    assert not torch.equal(alone, other_round)


def content(values, bits, client, round):
    """What this client's message holds."""
    if bits == 32:
        return Floats(values)
    if bits == 16:
        return Floats(values.bfloat16())
    return quantise(values, bits, Rounding(number(0, "quantise", round), int(client)))


@pytest.mark.parametrize("bits", [32, *LOW_BITS])
@pytest.mark.parametrize("tail", [0.0, 1.0])
def test_counted_bytes_are_those_of_the_messages(bits, tail):
    """To half a percent, for normal and for heavy-tailed numbers, dense and sparse."""
    generator = torch.Generator().manual_seed(bits)
    rows = torch.randn(3, 20_000, generator=generator)
    rows *= 10 ** (tail * torch.randn(rows.shape, generator=generator))
    clients, upload, dim = torch.tensor([5, 6, 7]), Upload(bits, seed=0), 10**5
    contents = [content(row, bits, client, 2) for row, client in zip(rows, clients, strict=True)]
    _, counted = upload.merge(rows, torch.full((3,), 1 / 3), clients, 2)
    really = sum(len(encode(SketchTable(dim, 1, 20_000, 1, 0, each))) for each in contents)
    assert float(counted) == pytest.approx(really, rel=0.005)
    places = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(dim)[:20_000]))
    _, counted = upload.send_chosen(dim, rows, clients, 2)
    really = sum(len(encode(SparseUpdate(dim, places, each))) for each in contents)
    assert float(counted) == pytest.approx(really, rel=0.005)


@pytest.mark.parametrize("method", METHODS)
def test_fewer_bits_count_for_the_wire_and_not_for_the_paper(method, tmp_path):
    results = {bits: make(method, f"bits={bits}").execute(tmp_path / str(bits)) for bits in (32, 8)}
    paper = [result["upload_bytes"] for result in results.values()]
    assert paper[0] == pytest.approx(paper[1], rel=0.05)  # zeros are not counted by the paper
    if method != "local_topk":  # its 20 values do not fill a run
        assert results[8]["wire_upload_bytes"] < results[32]["wire_upload_bytes"]
