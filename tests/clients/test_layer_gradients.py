"""One pass finds what vmap finds, for every kind of layer."""

import pytest
import torch
from fourclients import (
    OnPositions,
    both_ways,
    cohort_like,
    cohort_of,
    gradients_of,
    images,
    last,
    words,
)
from tinytask import tiny
from torch import nn

from fetchsgd.clients import layer_gradients
from fetchsgd.clients.batches import Cohort
from fetchsgd.tasks.digits import network
from fetchsgd.tasks.resnet9 import ResNet9


class Flattened(OnPositions):
    """Examples and positions in one dimension."""

    def forward(self, words):
        return self.each(self.norm(self.words(words.flatten()))).view(*words.shape, 3).mean(dim=1)


def bytes_of_images():
    generator = torch.Generator().manual_seed(0)
    return cohort_of(torch.randint(256, (4, 3, 3, 32, 32), generator=generator, dtype=torch.uint8))


SUITED = {
    "tiny": (lambda: tiny().model(), lambda: cohort_like(5)),
    "digits": (network, lambda: images(1)),
    "resnet9": (lambda: ResNet9(10, (125.0, 123.0, 114.0), (63.0, 62.0, 67.0)), bytes_of_images),
    "positions": (OnPositions, words),
    "flattened": (Flattened, words),
    "1x1": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), last(256)), images),
    "strided": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, (3, 2), stride=(2, 3), padding=(2, 1)), last(60)),
        images,
    ),
    "dilated": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, dilation=(2, 3), bias=False), last(32)),
        images,
    ),
    # Two rows at the bottom that no patch reaches.
    "left over": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=3), last(16)), images),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), last(144)),
        images,
    ),
    "in place": (
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.ReLU(inplace=True), last(6)
        ),
        lambda: cohort_like(5),
    ),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", SUITED)
def test_one_pass_equals_vmap(name):
    make, cohort = SUITED[name]
    in_one_pass, found, expected = both_ways(make(), cohort())
    assert in_one_pass
    assert expected.norm(dim=1).min() > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6 * float(expected.norm()))


def test_chunks_change_nothing(monkeypatch):
    gradients = gradients_of(network())
    weights, cohort = gradients.model.weights(), images(1)
    whole, _ = gradients.in_one_pass(weights, cohort)
    each = 4 * 32 * 9 * 3 * 64
    for clients in (1, 3):
        monkeypatch.setitem(layer_gradients.PATCH_BYTES, "cpu", clients * each)
        parts, _ = gradients.in_one_pass(weights, cohort)
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["digits", "positions", "group norm"])
def test_bfloat16(name):
    """Products in 16 bits, as vmap's are; results in 32, within the rounding of a few of them."""
    make, cohort = SUITED[name]
    in_one_pass, found, expected = both_ways(make(), cohort(), torch.bfloat16)
    assert in_one_pass
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gpu_and_graph(dtype):
    """As vmap up to TF32 and 16 bits; recorded as a CUDA graph the same."""
    make, cohort = SUITED["resnet9"]
    module, cohort = make(), cohort()
    gradients = gradients_of(module.cuda(), dtype)
    weights = gradients.model.weights()
    parts = (cohort.inputs, cohort.targets, cohort.present, cohort.weights)
    cohort = Cohort(*(part.cuda() for part in parts))
    expected, _ = gradients.by_vmap(weights, cohort)
    before = torch.backends.cuda.matmul.fp32_precision
    found, _ = gradients(weights, cohort)
    assert gradients.one_pass_serves
    assert torch.backends.cuda.matmul.fp32_precision == before
    # Eight layers deep, each rounds what the one behind it has rounded.
    allowed = 0.03 if dtype == torch.float32 else 0.2
    assert (found - expected).norm() < allowed * expected.norm()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients(weights, cohort)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded, _ = gradients(weights, cohort)
    graph.replay()
    assert (recorded - found).norm() < allowed * found.norm()
