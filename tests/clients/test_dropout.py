"""What a model draws follows from the seed that a pass is given, whichever way it is computed."""

import pytest
import torch
from fourclients import cohort_like
from randommodels import MODELS, Functional, Layered, Skipping

from fetchsgd.clients import trainer as trainers
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.randomness import seeded_globals
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel

ONE_GRADIENT = LocalWork()
STEPS = LocalWork(epochs=2, batch_size=2)


def trainer_of(make):
    torch.manual_seed(0)
    return Trainer(FlatModel(make()), cross_entropy, weight_decay=0.1)


def one_batch(trainer, seed):
    pieces, loss = trainer.mean_gradient(trainer.model.weights(), cohort_like(5).batch, seed)
    return torch.cat([*(piece.flatten() for piece in pieces), loss[None]])


def clients(trainer, seed, work, cohort=None, rate=0.1):
    generator = torch.Generator().manual_seed(3)
    cohort = cohort or cohort_like(5)
    vectors, losses = trainer.client_vectors(
        trainer.model.weights(), cohort, work, rate, generator, seed
    )
    return torch.cat([vectors, losses[:, None]], dim=1)


def side_by_side(trainer, seed):
    return clients(trainer, seed, ONE_GRADIENT)


def local_steps(trainer, seed):
    return clients(trainer, seed, STEPS)


def alone(trainer, seed):
    return clients(trainer, seed, ONE_GRADIENT, cohort_like(5).part(slice(1)))


def one_after_another(trainer, seed):
    trainer._side_by_side.vmap_serves = False
    return clients(trainer, seed, ONE_GRADIENT)


def by_vmap(trainer, seed):
    trainer._side_by_side.vmap_serves, trainer._side_by_side.one_pass_serves = True, False
    return clients(trainer, seed, ONE_GRADIENT)


WAYS = [one_batch, side_by_side, local_steps, alone, one_after_another, by_vmap]
CASES = [
    (name, way) for name in MODELS for way in WAYS if not (name == "skipping" and way is by_vmap)
]


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_equal_seeds_give_equal_bits_and_others_do_not(name, way):
    trainer = trainer_of(MODELS[name])
    torch.manual_seed(1)
    first = way(trainer, 7)
    torch.manual_seed(2)
    assert torch.equal(way(trainer, 7), first)
    # Also in a program that has just started, where what is tried once has not been tried.
    assert torch.equal(way(trainer_of(MODELS[name]), 7), first)
    assert not torch.equal(way(trainer, 8), first)


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_the_global_generator_is_left_alone(name, way):
    trainer = trainer_of(MODELS[name])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for seed in range(2):
        way(trainer, seed)
        assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_is_left_alone_by_a_pass_that_fails():
    class Failing(Layered):
        def forward(self, x):
            super().forward(x)
            raise KeyError

    trainer = trainer_of(Failing)
    before = torch.get_rng_state()
    with pytest.raises(KeyError):
        one_batch(trainer, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("work", [ONE_GRADIENT, STEPS], ids=["one gradient", "steps"])
def test_clients_draw_apart_from_each_other(work):
    """Four clients with the same examples send different vectors."""
    first = cohort_like(5).alone(0)
    cohort = cohort_like(5)
    cohort.inputs[:], cohort.targets[:], cohort.present[:] = first.inputs, first.targets, True
    for way in (None, False):
        trainer = trainer_of(Layered)
        if way is False:
            trainer._side_by_side.vmap_serves, trainer._side_by_side.one_pass_serves = True, False
        vectors = clients(trainer, 0, work, cohort)
        assert len(vectors.unique(dim=0)) == 4


def test_local_steps_draw_anew():
    """At a tiny rate two steps over the same examples are twice one step, but for the draws."""
    for make, is_twice in ((Layered, False), (lambda: Layered().eval(), True)):
        trainer = trainer_of(make)
        one, two = (
            clients(trainer, 0, LocalWork(epochs=epochs), rate=1e-4)[:, :-1] for epochs in (1, 2)
        )
        assert ((two - 2 * one).norm() < 0.01 * one.norm()) == is_twice


def test_dropout_layers_suit_one_pass():
    trainer = trainer_of(Layered)
    side_by_side(trainer, 0)
    assert trainer._side_by_side.one_pass_serves
    assert all(part.training for part in trainer.model.module.modules())


def test_a_model_that_vmap_cannot_run_is_run_client_by_client():
    trainer = trainer_of(Skipping)
    found = side_by_side(trainer, 0)
    assert trainer._side_by_side.vmap_serves is False
    with seeded_globals(0, torch.device("cpu")):
        for client, row in enumerate(found):
            pieces, _ = trainer.backward(trainer.model.weights(), cohort_like(5).alone(client))
            assert torch.equal(torch.cat([piece.flatten() for piece in pieces]), row[:-1])


def test_what_mixes_examples_only_in_training_is_noticed():
    class Mixing(Functional):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0) if self.training else x)

    trainer = trainer_of(Mixing)
    side_by_side(trainer, 0)
    assert trainer._side_by_side.one_pass_serves is False


def test_large_clients_are_done_one_by_one_with_the_same_draws(monkeypatch):
    monkeypatch.setattr(trainers, "LARGE_CLIENT", 0)
    trainer = trainer_of(Layered)
    assert torch.equal(side_by_side(trainer, 0), one_after_another(trainer, 0))
    assert not torch.equal(side_by_side(trainer, 0), side_by_side(trainer, 1))


def test_a_module_in_eval_mode_stays_so():
    def make():
        return Layered().eval()

    trainer = trainer_of(make)
    for way in WAYS:
        assert torch.equal(way(trainer, 0), way(trainer, 1))
    assert not any(part.training for part in trainer.model.module.modules())


def test_half_of_a_model_in_eval_mode():
    """Only what is in training mode draws."""

    def make():
        module = Layered()
        module[1].eval()
        return module

    trainer = trainer_of(make)
    side_by_side(trainer, 0)
    assert [part.training for part in trainer.model.module] == [True, False, True, True, True, True]
