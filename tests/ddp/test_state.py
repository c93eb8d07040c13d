"""What is kept belongs to parameters, checkpoints are checked, and options are."""

import weakref

import pytest
import torch
from torch import nn

from fetchsgd.ddp import Settings, SketchState
from fetchsgd.ddp.memory import Memory
from fetchsgd.errors import UserError

CPU = torch.device("cpu")
EVERYTHING = {"top_k": 0.1, "momentum": 0.9, "decode": "prior"}


def test_memory_follows_parameters_into_other_buckets():
    memory = Memory({"variance": True, "step": False})
    memory.bucket(["a", "b"], [2, 3], CPU)["variance"].copy_(torch.arange(5.0))
    memory.bucket(["c"], [1], CPU)["variance"].fill_(9.0)
    memory.bucket(["c"], [1], CPU)["step"].fill_(7.0)
    moved = memory.bucket(["c", "b"], [1, 3], CPU)
    assert moved["variance"].tolist() == [9.0, 2.0, 3.0, 4.0]
    assert moved["step"].tolist() == [7.0, 0.0]
    moved["variance"].zero_()
    assert memory.bucket(["b", "a"], [3, 2], CPU)["variance"].tolist() == [0, 0, 0, 0, 1]


def test_a_bucket_that_stays_keeps_its_vectors():
    memory = Memory({"variance": True})
    first = memory.bucket(["a", "b"], [2, 3], CPU)["variance"]
    assert memory.bucket(["a", "b"], [2, 3], CPU)["variance"] is first
    assert memory.has_all(["b", "a"])
    assert not memory.has_all(["a", "c"])


class Bucket:
    """What DDP hands over: some of a model's gradients, as a vector."""

    def __init__(self, index, parameters):
        self.at, self.all = index, list(parameters)
        self.vector = torch.zeros(sum(p.numel() for p in self.all))

    def buffer(self):
        return self.vector

    def index(self):
        return self.at

    def parameters(self):
        return self.all

    def gradients(self):
        parts = self.vector.split([p.numel() for p in self.all])
        return [part.view_as(p) for part, p in zip(parts, self.all, strict=True)]


def test_a_bucket_that_comes_again_is_known():
    network = model()
    first, *others = network.parameters()
    state = SketchState(network)
    buckets = [Bucket(0, [first]), Bucket(1, others)]
    seen = [state.seen(bucket) for bucket in buckets]
    # Those of the first step are not held, since DDP makes others after it.
    once = seen[0].done(buckets[0].vector)
    assert seen[0].ready is None
    assert once.value() is buckets[0].vector
    assert [state.seen(bucket) for bucket in buckets] == seen
    again = seen[0].done(buckets[0].vector)
    assert again.value() is buckets[0].vector
    assert seen[0].done(buckets[0].vector) is again


def test_buckets_that_are_no_more_are_forgotten():
    network = model()
    state = SketchState(network)
    before = [Bucket(0, list(network.parameters())[:1]), Bucket(1, list(network.parameters())[1:])]
    for _ in range(2):
        seen = [state.seen(bucket) for bucket in before]
    seen[1].done(before[1].vector)
    held = weakref.ref(before[1].vector)
    after = Bucket(0, list(network.parameters())[1:])
    layout = state.seen(after).layout
    assert layout is seen[1].layout  # of the same parameters
    del before, seen
    assert held() is None


def model(width=50):
    return nn.Sequential(nn.Linear(40, width), nn.LayerNorm(width), nn.Linear(width, 3))


def filled(state, value=2.0):
    for name, parameter in zip(state.names.values(), state.names, strict=True):
        if state.is_wide(parameter.shape):
            fields = state.memory.bucket([name], [parameter.numel()], CPU)
            for tensor in fields.values():
                tensor.fill_(value)
    return state


def test_vectors_and_small_tensors_are_compressed_only_if_asked_for():
    state = SketchState(model(), exact_below=200)
    compressed = [name for parameter, name in state.names.items() if state.is_wide(parameter.shape)]
    assert compressed == ["0.weight"]
    everything = SketchState(model(), exact_below=0)
    assert all(everything.is_wide(parameter.shape) for parameter in everything.names)


def test_a_state_dict_holds_numbers_texts_and_tensors_alone(tmp_path):
    state = filled(SketchState(model(), **EVERYTHING))
    torch.save(state.state_dict(), tmp_path / "state.pt")
    other = SketchState(model(), **EVERYTHING)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.memory.copies()["0.weight"]["momentum"].equal(torch.full((2000,), 2.0))
    kept = ["error", "momentum", "size", "step", "variance"]
    assert sorted(other.memory.copies()["0.weight"]) == kept


def test_a_loaded_state_is_a_copy():
    state = filled(SketchState(model(), **EVERYTHING))
    held = state.state_dict()
    filled(state, 5.0)
    assert float(held["parameters"]["0.weight"]["variance"][0]) == 2.0
    state.load_state_dict(held)
    filled(state, 6.0)
    assert float(held["parameters"]["0.weight"]["variance"][0]) == 2.0


def test_another_compression_goes_on_from_a_checkpoint():
    held = filled(SketchState(model(), 8.0)).state_dict()
    SketchState(model(), 64.0, noise_limit=2.0).load_state_dict(held)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momentum": 0.9}, "saved with momentum=0.0, and this one has momentum=0.9"),
        ({"seed": 1}, "saved with seed=0, and this one has seed=1"),
        ({"cells": "float32"}, "saved with cells='int8', and this one has cells='float32'"),
    ],
)
def test_a_state_of_other_settings_is_refused(options, words):
    held = filled(SketchState(model())).state_dict()
    with pytest.raises(UserError, match=words):
        SketchState(model(), **options).load_state_dict(held)


def test_a_state_of_another_model_is_refused():
    held = filled(SketchState(model(), top_k=0.1)).state_dict()
    with pytest.raises(UserError, match="'0.weight' must have 2400 numbers, got 2000"):
        SketchState(model(60), top_k=0.1).load_state_dict(held)
    with pytest.raises(UserError, match="it has '0.weight', which is not a parameter"):
        SketchState(nn.ModuleDict({"x": nn.Linear(40, 50)}), top_k=0.1).load_state_dict(
            held | {"parameters": held["parameters"] | {"x.weight": {}}}
        )
    with pytest.raises(UserError, match="it has no 'x.weight'"):
        SketchState(nn.ModuleDict({"x": nn.Linear(40, 50)}), top_k=0.1).load_state_dict(held)
    with pytest.raises(UserError, match="not a state_dict of SketchState: it has no 'format'"):
        SketchState(model(), top_k=0.1).load_state_dict(model().state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compression": 0.5}, "compression must be from 1 to 1e\\+06, got 0.5"),
        ({"compression": "8"}, "compression must be a number, got '8'"),
        ({"cells": "int5"}, "cells must be one of float32, .*, got 'int5'"),
        ({"decode": "map"}, "decode must be 'prior' or 'unbiased', got 'map'"),
        ({"start_iter": 1.5}, "start_iter must be a whole number, got 1.5"),
        ({"top_k": 2.0}, "top_k must be from 0 to 1, got 2.0"),
        ({"momentum": -1.0}, "momentum must be from 0 to 1, got -1.0"),
        ({"balance": 2.0}, "balance must be from 0 to 1, got 2.0"),
        ({"group_mb": -1.0}, "group_mb must be from 0 to .*, got -1.0"),
        ({"seed": -1}, "seed must be from 0 to .*, got -1"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(UserError, match=words):
        SketchState(model(), **options)


def test_without_a_prior_nothing_is_kept_for_each_weight():
    assert Settings(8.0, "float32", balance=0.0).fields == {}
    assert Settings(8.0, "int8").fields == {"step": False, "size": False}
    assert Settings(8.0, "int8", **EVERYTHING).fields == {
        "variance": True, "momentum": True, "error": True, "step": False, "size": False
    }  # fmt: skip


def test_buckets_wait_for_each_other_on_a_gpu_alone():
    gpu = torch.device("cuda")
    assert Settings().group_bytes(CPU) == 0
    assert Settings().group_bytes(gpu) == 512 * 2**20
    assert Settings(group_mb=2.0).group_bytes(CPU) == Settings(group_mb=2.0).group_bytes(gpu)


def test_nothing_to_train():
    with pytest.raises(UserError, match="no trainable parameters"):
        SketchState(nn.ReLU())


def test_cells_fit_into_the_bytes():
    for cells in ("float32", "bfloat16", "int16", "int8", "int4"):
        settings = Settings(64.0, cells)
        cols = settings.sketch(1_000_000, 0, 0).cols
        assert cols * settings.bits == 32 * 1_000_000 / 64
    assert Settings(1.0, "int8").sketch(1000, 0, 0).cols == 1000  # more cells say no more


def test_every_step_and_every_bucket_has_a_hash_of_its_own():
    settings = Settings()
    seeds = {settings.sketch(1000, step, bucket).seed for step in range(9) for bucket in range(9)}
    assert len(seeds) == 81
