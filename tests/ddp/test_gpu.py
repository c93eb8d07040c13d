"""The hook over NCCL and gloo with one rank: streams, kernels and rounding on a GPU."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp import LowRankState, SketchState, low_rank_hook, sketch_hook

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    place = tmp_path_factory.mktemp("nccl") / "meeting"
    dist.init_process_group("nccl", f"file://{place}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(model, inputs, options, steps=6, group=None, bucket_cap_mb=1):
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, process_group=group)
    state = None
    if "rank" in options:
        state = LowRankState(ddp, **options)
        ddp.register_comm_hook(state, low_rank_hook)
    elif options:
        state = SketchState(ddp, **options)
        ddp.register_comm_hook(state, sketch_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        ddp(inputs[step]).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]), state


@pytest.fixture
def network_and_inputs(generator):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    return model.cuda(), torch.randn(6, 32, 512, generator=generator).cuda()


def test_a_cell_for_each_weight_is_plain_ddp(group, network_and_inputs):
    model, inputs = network_and_inputs
    plain, _ = trained(copy.deepcopy(model), inputs, {})
    options = {"compression": 1.0, "cells": "float32"}
    ours, _ = trained(copy.deepcopy(model), inputs, options)
    assert (plain - ours).abs().max() < 1e-6


CELLS = ["float32", "bfloat16", "int16", "int8", "int4"]
# Some go by few programs, others by many.
OPTIONS = [{}, {"feedback": 0.5}, {"momentum": 0.5}, {"top_k": 0.01, "momentum": 0.5}]


def same(one, two):
    one, two = one.memory.copies(), two.memory.copies()
    return all(one[name][field].equal(two[name][field]) for name in one for field in one[name])


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_steps_give_the_same_bits(group, network_and_inputs, cells, options):
    model, inputs = network_and_inputs
    options = {"compression": 16.0, "cells": cells} | options
    first, state = trained(copy.deepcopy(model), inputs, options)
    again, other = trained(copy.deepcopy(model), inputs, options)
    assert first.isfinite().all()
    assert first.equal(again)
    assert same(state, other)


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("options", OPTIONS)
def test_buckets_together_are_one_bucket_to_the_bit(group, network_and_inputs, cells, options):
    model, inputs = network_and_inputs
    options = {"compression": 16.0, "cells": cells, "exact_below": 0} | options
    together, state = trained(copy.deepcopy(model), inputs, options)
    single, other = trained(copy.deepcopy(model), inputs, options, bucket_cap_mb=100)
    assert together.equal(single)
    assert same(state, other)
    # And each by itself has hashes of its own.
    alone, _ = trained(copy.deepcopy(model), inputs, options | {"group_mb": 0.0})
    assert alone.isfinite().all()
    assert not alone.equal(single)


def test_gradients_are_there_when_the_optimiser_reads_them(group):
    """Many buckets, and a backward pass that is still running when the last is handed over."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.ReLU()) for _ in range(8)]
    model, inputs = nn.Sequential(*layers).cuda(), torch.randn(6, 4096, 2048, device="cuda")
    for size in (0.0, 40.0, None):
        ddp = DistributedDataParallel(model, bucket_cap_mb=1)
        state = SketchState(ddp, 1.0, cells="float32", group_mb=size)  # a cell for each weight
        ddp.register_comm_hook(state, sketch_hook)
        for batch in inputs:
            model.zero_grad()
            model(batch).square().sum().backward()
            expected = [p.grad.clone() for p in model.parameters()]
            ddp.zero_grad(set_to_none=True)
            ddp(batch).square().sum().backward()
            found = [p.grad.clone() for p in model.parameters()]
            for one, other in zip(found, expected, strict=True):
                assert (one - other).norm() < 1e-4 * other.norm()
        del ddp


@pytest.mark.parametrize(
    "options", [{}, {"feedback": 0.5}, {"momentum": 0.5}, {"start_iter": 3}, {"group_mb": 0.0}]
)
def test_gloo_gives_the_bits_of_nccl(group, network_and_inputs, options):
    model, inputs = network_and_inputs
    options = {"compression": 16.0} | options
    first, state = trained(copy.deepcopy(model), inputs, options)
    slow = dist.new_group(backend="gloo")
    again, other = trained(copy.deepcopy(model), inputs, options, group=slow)
    assert first.equal(again)
    assert same(state, other)


def test_gloo_gives_the_bits_of_nccl_for_matrices_of_low_rank(group, network_and_inputs):
    model, inputs = network_and_inputs
    plain, _ = trained(copy.deepcopy(model), inputs, {})
    first, _ = trained(copy.deepcopy(model), inputs, {"rank": 4})
    slow = dist.new_group(backend="gloo")
    again, _ = trained(copy.deepcopy(model), inputs, {"rank": 4}, group=slow)
    assert first.isfinite().all()
    assert first.equal(again)
    assert not first.equal(plain)
