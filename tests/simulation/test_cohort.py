"""A cohort done at once equals one client after another, with unequal clients."""

import copy

import numpy as np
import pytest
import torch

from fetchsgd.methods import LocalTopK, Upload
from fetchsgd.quantisers import Bits
from fetchsgd.randomness import number
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

NAME = {"task": {"name": "tinytask:tiny"}}
COHORT = np.array([7, 2, 9, 4, 0])


def make(method, *sets):
    return Run(resolve({**NAME, "method": {"name": method}}, sets))


def naive_vectors(run, weights, rate=0.1):
    """Each client's gradient or difference by ordinary autograd on a module of its own."""
    data, local = run.cohort.gatherer.data, run.config.local
    vectors, losses = [], []
    for client in COHORT:
        rows = slice(data.offsets[client], data.offsets[client + 1])
        x, y = data.inputs[rows], data.targets[rows]
        module = copy.deepcopy(run.setup.model.module)
        torch.nn.utils.vector_to_parameters(weights, module.parameters())
        decay, step, first = run.setup.trainer.weight_decay, rate, None
        for _ in range(max(local.epochs, 1)):
            loss = run.setup.trainer.loss(module(x), y).mean()
            first = loss.detach() if first is None else first
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            flat = torch.cat([g.flatten() for g in gradients])
            now = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
            flat = flat + decay * now
            if local.clip:
                flat = flat * min(1.0, local.clip / float(flat.norm()))
            if local.epochs:
                torch.nn.utils.vector_to_parameters(now - step * flat, module.parameters())
                step *= local.lr_decay
        end = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        vectors.append(weights - end if local.epochs else flat)
        losses.append(first)
    return torch.stack(vectors), torch.stack(losses)


def shares(run):
    sizes = torch.from_numpy(run.cohort.gatherer.data.sizes[COHORT]).float()
    weights = sizes if run.config.train.averaging == "examples" else torch.ones(len(sizes))
    return weights / weights.sum()


@pytest.mark.parametrize("averaging", ["uniform", "examples"])
@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("weight_decay=0.1",),
        ("local.clip=0.5",),
        ("local.epochs=3", "local.lr_decay=0.5", "weight_decay=0.05"),
        ("local.epochs=2", "local.clip=0.3"),
        ("local.epochs=1", "weight_decay=0.1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["uncompressed", "fetchsgd", "true_topk", "local_topk"])
def test_equals_client_by_client(method, sets, averaging):
    run = make(method, *sets, f"averaging={averaging}")
    weights = run.setup.model.weights()
    merged = run.cohort(weights, COHORT, 0.1, 0, None)
    vectors, losses = naive_vectors(run, weights)
    if method == "local_topk":
        kept = vectors.abs().topk(run.method.k, dim=1).indices
        sent = torch.zeros_like(vectors).scatter(1, kept, vectors.gather(1, kept))
        expected = shares(run) @ sent
        assert int(merged.numbers_up) == int((sent != 0).sum())
    else:
        message = run.method.message
        each = torch.stack([message.compress(v.contiguous()) for v in vectors])
        expected = torch.tensordot(shares(run), each, dims=1)
        assert merged.numbers_up == len(COHORT) * message.numbers
    torch.testing.assert_close(merged.mean, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(merged.loss, shares(run) @ losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["local_topk", "fedavg"])
def test_chunks_change_nothing(monkeypatch, method):
    run = make(method)
    weights = run.setup.model.weights()
    whole = run.cohort(weights, COHORT, 0.1, 0, None)
    monkeypatch.setattr(
        "fetchsgd.simulation.cohort.CHUNK_BYTES", {"cpu": 4 * 2 * run.setup.model.dim}
    )
    parts = run.cohort(weights, COHORT, 0.1, 0, None)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bits", [32, 16, 2])
@pytest.mark.parametrize(
    "method", ["uncompressed", "fetchsgd", "true_topk", "local_topk", "local_topk, with memory"]
)
def test_nothing_keeps_the_vectors(method, bits):
    """On a GPU the next chunk, or the next round, overwrites them."""
    name, _, remembers = method.partition(", ")
    sets = ("local_error=true", "local_momentum=0.5") if remembers else ()
    run = make(name, f"upload.bits={bits}", *sets)
    message = run.method.message
    memory = message.first_memory(12, torch.device("cpu"))
    assert (memory is not None) == bool(remembers)
    vectors = random_vectors(0, run.setup.model.dim)
    clients, upload = torch.from_numpy(COHORT), run.cohort.upload(0)
    merged = message.merge(vectors, shares(run), clients, upload, memory)
    vectors.fill_(torch.nan)
    kept = [part for part in merged if part is not None] + list((memory or {}).values())
    assert all(torch.isfinite(torch.as_tensor(part)).all() for part in kept)


def test_local_batches_use_each_example_once_an_epoch():
    """At a tiny rate all steps see the same weights, so their sum is that of all examples.

    Only clients whose batches of two are all full: in a half full one an example weighs double.
    """
    run = make("fedavg", "local.epochs=1", "local.batch_size=2")
    weights, data = run.setup.model.weights(), run.cohort.gatherer.data
    cohort = np.flatnonzero(data.sizes % 2 == 0)
    assert len(set(data.sizes[cohort])) > 1
    merged = run.cohort(weights, cohort, 1e-3, 0, None)
    total = torch.zeros_like(weights)
    for client in cohort:
        rows = slice(data.offsets[client], data.offsets[client + 1])
        parameters = [v.detach().requires_grad_() for v in run.setup.model.views(weights)]
        losses = run.setup.trainer.loss(
            run.setup.model(parameters, data.inputs[rows]), data.targets[rows]
        )
        gradient = torch.autograd.grad(losses.sum() / 2, parameters)
        total += torch.cat([g.flatten() for g in gradient]) / len(cohort)
    torch.testing.assert_close(merged.mean / 1e-3, total, rtol=0.01, atol=0.01)


def test_local_error_returns_what_was_not_sent():
    """given = sent + kept, for every client and round."""
    run = make("local_topk", "local_error=true", "k=10")
    training = run.start()
    weights, memory = training.weights, training.memory
    error = memory["error"]  # updated in place
    given, sent = torch.zeros_like(error), torch.zeros_like(error)
    for round in range(4):
        vectors, _ = naive_vectors(run, weights)
        given[COHORT] += vectors
        before = error[COHORT].clone()
        run.cohort(weights, COHORT, 0.1, round, memory)
        sent[COHORT] += before + vectors - error[COHORT]
    torch.testing.assert_close(sent + error, given, rtol=1e-4, atol=1e-5)
    assert ((error[COHORT] == 0).sum(dim=1) >= 10).all()


def choose_by_indices(method, vectors, shares, clients, upload, memory):
    """The same by sorted indices, one coordinate after another added to the sum."""
    momentum = vectors
    if memory is not None and method.local_momentum:
        momentum = method.local_momentum * memory["momentum"][clients] + vectors
    error = momentum
    if memory is not None and method.local_error:
        error = memory["error"][clients] + momentum
    order = error.abs().sort(dim=1, descending=True, stable=True).indices
    indices = order[:, : method.k].sort(dim=1).values
    values = error.gather(1, indices)
    if memory is not None:
        memory["momentum"][clients] = momentum.scatter(1, indices, 0)
        memory["error"][clients] = error.scatter(1, indices, 0)
    rounded = upload.quantiser.round_rows(values, upload.key, clients)
    sent = rounded.dequantise()
    positions = position_bytes(method.dim, torch.tensor([method.k]))[0]
    bytes = len(values) * (HEADER_BYTES + positions) + rounded.section_bytes().sum()
    total = torch.zeros(method.dim)
    total.index_add_(0, indices.flatten(), (sent * shares[:, None]).flatten())
    return total, (values != 0).sum(), bytes


def random_vectors(seed, dim):
    """One of which has too few numbers, one many ties."""
    vectors = torch.randn(len(COHORT), dim, generator=torch.Generator().manual_seed(seed))
    vectors[1, 50:] = 0
    vectors[3] = vectors[3].round()
    return vectors


@pytest.mark.parametrize("bits", [32, 16, 4, 2])
@pytest.mark.parametrize("k", [1, 300, 1000])
@pytest.mark.parametrize(
    "local",
    [
        {},
        {"local_error": True},
        {"local_momentum": 0.5},
        {"local_momentum": 0.5, "local_error": True},
    ],
    ids=str,
)
def test_choosing_by_masks_equals_choosing_by_indices(local, k, bits):
    method = LocalTopK(1000, k, **local)
    memory = method.message.first_memory(12, torch.device("cpu"))
    assert (memory is not None) == bool(local)
    expected_memory = copy.deepcopy(memory)
    shares, clients = torch.tensor([0.3, 0.1, 0.2, 0.15, 0.25]), torch.from_numpy(COHORT)
    for round in range(3):
        given = random_vectors(round, 1000)
        upload = Upload(Bits(bits), number(4, "quantise", round))
        total, numbers, bytes, *_ = method.message.merge(given, shares, clients, upload, memory)
        assert torch.equal(given, random_vectors(round, 1000))
        expected = choose_by_indices(method, given, shares, clients, upload, expected_memory)
        torch.testing.assert_close(total, expected[0], rtol=1e-5, atol=1e-6)
        assert numbers == expected[1]
        assert bytes == expected[2]
        if memory is not None:
            assert memory.keys() == expected_memory.keys() == {"momentum", "error"}
            for name, rows in memory.items():
                assert torch.equal(rows, expected_memory[name])


@pytest.mark.parametrize("most", [1, 9])
@pytest.mark.parametrize("averaging", ["uniform", "examples"])
@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fetchsgd", ("weight_decay=0.1", "weight_decay_by=clients")),
        ("fetchsgd", ("upload.bits=8",)),
        ("fetchsgd", ("upload.sum=modular",)),
        ("local_topk", ()),
        ("fedavg", ("local.epochs=2",)),
    ],
)
def test_blocks_of_examples_change_nothing(monkeypatch, method, sets, averaging, most):
    run = make(method, *sets, f"averaging={averaging}")
    weights = run.setup.model.weights()
    whole = run.cohort(weights, COHORT, 0.1, 0, None)
    monkeypatch.setattr("fetchsgd.clients.gathering.MOST_EXAMPLES", most)
    sizes = [len(block.shares) for _, _, block in run.cohort.gatherer.batches(COHORT, 0)]
    assert len(sizes) == 5 if most == 1 else 1 < len(sizes) < 5
    parts = run.cohort(weights, COHORT, 0.1, 0, None)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.loss, whole.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.as_tensor(parts.bytes_up), torch.as_tensor(whole.bytes_up))


def test_few_examples_are_one_block_to_the_bit():
    run = make("fetchsgd", "weight_decay=0.1")
    gatherer = run.cohort.gatherer
    [(share, _, block)] = gatherer.batches(COHORT, 3)
    batch = gatherer.gather_batch(COHORT, 3)
    assert share == 1
    assert torch.equal(block.inputs, batch.inputs)
    assert torch.equal(block.shares, batch.shares)
    [(_, _, cohort)] = gatherer.cohorts(COHORT, 3)
    assert torch.equal(cohort.weights, gatherer.gather(COHORT, 3).weights)
