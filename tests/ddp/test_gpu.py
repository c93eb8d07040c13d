"""The hook over NCCL with one rank: streams, kernels and rounding on a GPU."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp import SketchState, sketch_hook

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    place = tmp_path_factory.mktemp("nccl") / "meeting"
    dist.init_process_group("nccl", f"file://{place}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(model, inputs, options, steps=6):
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    state = SketchState(ddp, **options) if options else None
    if state:
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


@pytest.mark.parametrize("cells", ["float32", "bfloat16", "int16", "int8", "int4"])
@pytest.mark.parametrize("top_k", [0.0, 0.01])
def test_the_same_steps_give_the_same_bits(group, network_and_inputs, cells, top_k):
    model, inputs = network_and_inputs
    options = {"compression": 16.0, "cells": cells, "top_k": top_k, "momentum": 0.5}
    first, state = trained(copy.deepcopy(model), inputs, options)
    again, other = trained(copy.deepcopy(model), inputs, options)
    assert first.isfinite().all()
    assert first.equal(again)
    one, two = state.memory.copies(), other.memory.copies()
    assert all(one[name][field].equal(two[name][field]) for name in one for field in one[name])
