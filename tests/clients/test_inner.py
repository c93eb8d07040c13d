"""Local steps by torch's optimisers: clients side by side equal one torch optimiser each."""

import copy

import numpy as np
import pytest
import torch
from fourclients import SIZES, cohort_like
from torch import nn

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.inner import first_rows, local_batches
from fetchsgd.clients.local_work import LocalWork
from fetchsgd.clients.trainer import Trainer
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel

CPU, RATES, DECAY = torch.device("cpu"), (0.05, 0.02), 0.1
ADAMW = LocalWork(steps=4, optimizer="adamw", beta2=0.9, eps=1e-3, state="keep", lr_decay=0.9)
MOMENTUM = LocalWork(epochs=3, momentum=0.9, state="keep", clip=0.5)


def optimiser_of(work, parameters):
    if work.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, momentum=work.momentum)
    betas = (work.beta1, work.beta2)
    return torch.optim.AdamW(parameters, lr=0.0, betas=betas, eps=work.eps, weight_decay=DECAY)


def by_torch(module, cohort, work, rounds):
    """Each client's differences in each round, by an optimiser of its own over a whole module."""
    start, found = copy.deepcopy(module.state_dict()), []
    for client in range(len(cohort.present)):
        own = copy.deepcopy(module)
        there = cohort.present[client]
        x, y = cohort.inputs[client][there], cohort.targets[client][there]
        optimiser, own_rounds = optimiser_of(work, own.parameters()), []
        for round in range(rounds):
            own.load_state_dict(start)
            before = nn.utils.parameters_to_vector(own.parameters()).detach().clone()
            if work.state == "drop":
                optimiser = optimiser_of(work, own.parameters())
            rate = RATES[round]
            for _ in range(work.steps or work.epochs):
                optimiser.zero_grad()
                nn.functional.cross_entropy(own(x), y).backward()
                if work.clip:
                    nn.utils.clip_grad_norm_(own.parameters(), work.clip)
                for group in optimiser.param_groups:
                    group["lr"] = rate
                optimiser.step()
                rate *= work.lr_decay
            own_rounds.append(before - nn.utils.parameters_to_vector(own.parameters()).detach())
        found.append(torch.stack(own_rounds))
    return torch.stack(found, dim=1)  # (rounds, clients, dim)


@pytest.mark.parametrize("state", ["keep", "drop"])
@pytest.mark.parametrize("work", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
def test_equals_one_optimiser_for_each_client(work, state):
    torch.manual_seed(0)
    module, cohort = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), cohort_like(5)
    work = LocalWork(**(vars(work) | {"state": state}))
    model = FlatModel(module)
    decay = DECAY if work.optimizer == "adamw" else 0.0
    trainer = Trainer(model, cross_entropy, decoupled_decay=decay)
    kept, weights = first_rows(work, 4, model.dim, CPU), model.weights()
    assert (kept is not None) == (state == "keep")
    expected = by_torch(module, cohort, work, len(RATES))
    for rate, differences in zip(RATES, expected, strict=True):
        generator = torch.Generator().manual_seed(0)
        vectors, _ = trainer.client_vectors(weights, cohort, work, rate, generator, 0, kept)
        torch.testing.assert_close(vectors, differences, rtol=1e-4, atol=1e-6)


def test_a_client_without_examples_left_takes_no_step():
    """With batches of one, clients of 3, 1, 2 and 3 examples take so many steps in an epoch."""
    work = LocalWork(epochs=2, batch_size=1, optimizer="adamw", state="keep")
    model = FlatModel(nn.Linear(5, 3))
    kept = first_rows(work, 4, model.dim, CPU)
    trainer, generator = Trainer(model, cross_entropy), torch.Generator().manual_seed(0)
    trainer.client_vectors(model.weights(), cohort_like(5), work, 0.1, generator, 0, kept)
    assert kept["step"].tolist() == (2 * SIZES).tolist()


@pytest.mark.parametrize("size", [1, 2])
def test_steps_go_round_each_clients_own_data(size):
    cohort = cohort_like(5)
    work, generator = LocalWork(steps=12, batch_size=size), torch.Generator().manual_seed(0)
    batches = [batch for batch, _ in local_batches(cohort, work, generator)]
    assert len(batches) == 12
    for client, own in enumerate(SIZES.tolist()):
        in_a_pass = -(-own // size)
        for start in range(0, 12, in_a_pass):
            seen = [b.inputs[client][b.present[client]] for b in batches[start : start + in_a_pass]]
            seen = torch.cat(seen)[:, 0].sort().values
            assert torch.equal(seen, cohort.inputs[client, :own, 0].sort().values)


def test_steps_are_those_of_epochs_where_clients_are_of_one_size():
    cohort = cohort_like(5)
    cohort = cohort.with_present(torch.ones_like(cohort.present))
    model = FlatModel(nn.Linear(5, 3))
    trainer, found = Trainer(model, cross_entropy), []
    for steps in ({"epochs": 2}, {"steps": 4}):
        work, generator = LocalWork(batch_size=2, **steps), torch.Generator().manual_seed(0)
        found.append(trainer.client_vectors(model.weights(), cohort, work, 0.1, generator, 0)[0])
    assert torch.equal(*found)


def make(method, *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


def test_the_state_of_simulated_clients_is_their_own():
    """Whoever takes part has moved on by its steps; in chunks or not, in any order."""
    run = make("uncompressed", "local.steps=3", "optimizer=adamw", "state=keep", "beta1=0.5")
    training = run.start()
    weights, memory = training.weights, training.memory
    for round, cohort in enumerate(([7, 2, 9], [2, 0])):
        run.cohort(weights, np.array(cohort), 0.1, round, memory)
    steps = torch.zeros(12)
    steps[[7, 9, 0]], steps[2] = 3, 6
    assert torch.equal(memory["inner.step"], steps)
    assert torch.equal(memory["inner.exp_avg"].any(dim=1), steps > 0)


def test_the_outer_rate_is_the_servers():
    """With momentum 0 the step is the mean difference times the outer rate."""
    steps = []
    for rate in (1.0, 0.25):
        run = make("uncompressed", "momentum=0", "local.steps=2", f"outer_rate={rate}")
        start = run.start()
        after, merged = next(run.train(start))
        torch.testing.assert_close(start.weights - after.weights, rate * merged.mean)
        steps.append(merged.mean)
    assert torch.equal(*steps)


@pytest.mark.gpu
@pytest.mark.parametrize("work", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
def test_a_gpu_takes_the_same_steps(work):
    torch.manual_seed(0)
    module, cohort = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), cohort_like(5)
    found = []
    for device in ("cpu", "cuda"):
        model = FlatModel(copy.deepcopy(module).to(device))
        there = Cohort(
            *(part.to(device) for part in (cohort.inputs, cohort.targets)),
            *(part.to(device) for part in (cohort.present, cohort.weights)),
        )
        kept = first_rows(work, 4, model.dim, torch.device(device))
        trainer, generator = Trainer(model, cross_entropy), torch.Generator(device)
        vectors = [
            trainer.client_vectors(model.weights(), there, work, rate, generator, 0, kept)[0]
            for rate in RATES
        ]
        found.append([vectors[1].cpu(), *(part.cpu() for part in kept.values())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
