"""Models, data and losses as they are."""

from typing import NamedTuple

import pytest
import torch
from exchange.loops import data_of, plan_for
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fetchsgd as fs
from fetchsgd.exchange.frames import from_frame
from fetchsgd.exchange.messages import Answer
from fetchsgd.exchange.own_model import OwnWork
from fetchsgd.vector import FlatModel

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(6) % 3


class Recurrent(nn.Module):
    """A GRU, words that are tied, dropout, and a part that is frozen."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids, targets=None):
        hidden, _ = self.gru(self.frozen(self.words(ids)))
        logits = self.out(self.drop(hidden))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def one_update(plan, own_loss, data, **more):
    return fs.client_update(fs.Server(plan).request(0), plan, own_loss, data, **more)[0]


def test_a_recurrent_model_of_several_inputs_that_computes_its_own_loss():
    ids = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(0))
    batch = {"ids": ids, "targets": ids.roll(-1, 1)}
    plan = fs.Plan(Recurrent, "uncompressed", schedule={"peak": 1.0}, local={"epochs": 2})
    frozen = plan.setup.model.module.frozen.weight.clone()
    server = fs.Server(plan)
    losses, state = [], None
    for _ in range(30):
        reply, state = fs.client_update(
            server.request(0), plan, lambda model, batch: model(**batch), batch, state
        )
        server.receive(reply)
        losses.append(server.step().loss)
    assert losses[-1] < 0.7 * losses[0]
    model = server.model()
    assert torch.equal(model.frozen.weight, frozen)
    assert model.out.weight is model.words.weight


def test_draws_follow_from_seed_round_and_client():
    ids = torch.zeros(3, 5, dtype=torch.int64)
    batch = {"ids": ids, "targets": ids}
    plan = fs.Plan(Recurrent, "uncompressed")

    def sent(seed):
        torch.manual_seed(seed)
        return from_frame(one_update(plan, lambda model, b: model(**b), batch), Answer).payload

    assert sent(0) == sent(1)


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def mean(model, batch):
    inputs, targets = batch.values() if isinstance(batch, dict) else batch
    return nn.functional.cross_entropy(model(inputs), targets)


FORMS = {
    "tuple": (INPUTS, TARGETS),
    "named tuple": Pair(INPUTS, TARGETS),
    "dictionary": {"x": INPUTS, "y": TARGETS},
    "batches": [(INPUTS[:4], TARGETS[:4]), (INPUTS[4:], TARGETS[4:])],
    "loader": DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4),
    "generator": lambda: ((INPUTS[i : i + 1], TARGETS[i : i + 1]) for i in range(6)),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_data_give_the_same_gradient(form):
    plan = plan_for("uncompressed")
    data = FORMS[form]() if form == "generator" else FORMS[form]
    weights = plan.setup.origin
    found = OwnWork(plan.setup, 0, 0, 0.1).by_loss(mean, data, weights)
    model = FlatModel(plan.setup.model.module)
    value = mean(model.module, (INPUTS, TARGETS))
    pieces = torch.autograd.grad(value, model.module.parameters())
    expected = torch.cat([piece.flatten() for piece in pieces])
    torch.testing.assert_close(found.vector, expected, rtol=1e-5, atol=1e-7)
    assert found.examples == 6
    assert found.loss == pytest.approx(value.item(), rel=1e-5)


def sgd(model, data, rate):
    optimiser = torch.optim.SGD(model.parameters(), rate)
    for _ in range(2):
        optimiser.zero_grad()
        value = mean(model, data)
        value.backward()
        optimiser.step()
    return value.item(), len(data[1])


def test_training_of_ones_own_is_local_steps():
    plan = plan_for("fedavg", local={"epochs": 2})
    steps, own = (
        OwnWork(plan.setup, 0, 0, 0.1).by_loss(mean, (INPUTS, TARGETS), plan.setup.origin),
        OwnWork(plan.setup, 0, 0, 0.1).by_training(sgd, (INPUTS, TARGETS), plan.setup.origin),
    )
    torch.testing.assert_close(own.vector, steps.vector, rtol=1e-4, atol=1e-7)
    reply = fs.client_update(fs.Server(plan).request(0), plan, data=data_of(0), train=sgd)[0]
    assert from_frame(reply, Answer).examples == len(data_of(0)[1])


LOCAL = {"epochs": 1, "batch_size": 2}
MISTAKES = {
    "a number": ({}, lambda *_: 1.0, (INPUTS, TARGETS), "must return a tensor that follows"),
    "detached": ({}, lambda m, b: mean(m, b).detach(), (INPUTS, TARGETS), "a tensor that does not"),
    "outputs": ({}, lambda m, b: m(b[0]), (INPUTS, TARGETS), r"each of its 6 examples.*\(6, 3\)"),
    "nothing": ({}, mean, [], "client 0 has no examples"),
    "empty": ({}, mean, (INPUTS[:0], TARGETS[:0]), "client 0 has no examples"),
    "no tensors": ({}, mean, {"x": 3}, "whose first dimension counts examples, got dict"),
    "cut twice": ({"local": LOCAL}, mean, [(INPUTS, TARGETS)], "comes in batches already"),
}


@pytest.mark.parametrize(("more", "own_loss", "data", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_a_sentence(more, own_loss, data, sentence):
    plan = plan_for("uncompressed", **more)
    with pytest.raises(fs.UserError, match=sentence):
        one_update(plan, own_loss, data)


PLANS = {
    "no model": (lambda: fs.Plan(3), "model must be a module"),
    "no cols": (lambda: plan_for("fetchsgd"), "method.cols must be given"),
    "no k": (
        lambda: plan_for({"name": "fetchsgd", "hash": "fixed", "cols": 40}),
        "method.hash = 'fixed' needs method.k, how many coordinates are sent",
    ),
    "other loop": (lambda: plan_for(clients_per_round=3), "a plan has no setting 'clients_per"),
    "epochs": (lambda: plan_for(epochs=3), r"local steps are local="),
    "unknown": (lambda: plan_for(upload={"bitz": 3}), "there is no setting upload.bitz"),
    "no rounds": (lambda: plan_for(schedule={"kind": "linear"}), "say how many there will be"),
    "no section": (lambda: plan_for(schedule=0.1), "schedule must be a dictionary of settings"),
    "other size": (lambda: plan_for(fs.Uncompressed(3)), "for 3 weights, but the model has 75"),
    "batch norm": (
        lambda: fs.Plan(lambda: nn.BatchNorm1d(3), "uncompressed"),
        "running statistics",
    ),
}


@pytest.mark.parametrize(("make", "sentence"), PLANS.values(), ids=PLANS)
def test_a_mistake_in_a_plan_gets_a_sentence(make, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        make()


def test_mistakes_in_a_loop_get_sentences():
    plan = plan_for("uncompressed")
    server = fs.Server(plan)
    with pytest.raises(fs.UserError, match="no client has replied to round 0"):
        server.step()
    with pytest.raises(fs.UserError, match="client must be a whole number"):
        server.request(-1)
    with pytest.raises(fs.UserError, match="either a loss or train"):
        fs.client_update(server.request(0), plan)
    with pytest.raises(fs.UserError, match="the plan asks for one gradient"):
        fs.client_update(server.request(0), plan, data=data_of(0), train=sgd)
