"""ResNet9: its size, what it sees, and every client's own gradient."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from fetchsgd.tasks import cross_entropy
from fetchsgd.tasks.cifar import CIFAR10
from fetchsgd.tasks.resnet9 import ResNet9, pooled

MEAN, STD = CIFAR10.mean, CIFAR10.std


def bytes_like(*shape, generator):
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ResNet9(10, MEAN, STD)


@pytest.mark.parametrize(("classes", "weights"), [(10, 6_568_640), (100, 6_614_720)])
def test_number_of_weights(classes, weights):
    module = ResNet9(classes, MEAN, STD)
    assert sum(p.numel() for p in module.parameters()) == weights
    assert not module.state_dict().keys() - dict(module.named_parameters()).keys()


def test_network_sees_normalised_images(network, generator):
    """Bytes at the mean and one deviation above become zeros and ones before the first layer."""
    seen = []
    network.first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    levels = torch.tensor([MEAN, np.add(MEAN, STD).tolist()])
    outputs = network(levels.round().byte().view(2, 3, 1, 1).expand(2, 3, 32, 32))
    assert outputs.shape == (2, 10)
    torch.testing.assert_close(seen[0].mean(dim=(2, 3)), torch.tensor([[0.0] * 3, [1.0] * 3]),
                               atol=0.01, rtol=0)  # fmt: skip


def test_pooling_and_relu_commute(generator):
    """In values and, where no two pixels tie, in gradients."""
    x = torch.randn(2, 3, 8, 8, generator=generator, requires_grad=True)
    ours = pooled(x)
    usual = torch.nn.functional.max_pool2d(x.relu(), 2)
    assert torch.equal(ours, usual)
    slopes = [torch.autograd.grad((y**2).sum(), x)[0] for y in (ours, usual)]
    assert torch.equal(*slopes)


def test_gradients_of_clients_side_by_side(network, generator):
    """torch.func sees the bytes and the buffers; each client's gradient is its own."""
    images = bytes_like(2, 2, 3, 32, 32, generator=generator)
    targets = torch.tensor([[3, 3], [8, 8]])
    parameters = dict(network.named_parameters())

    def loss(parameters, images, targets):
        return cross_entropy(functional_call(network, parameters, (images,)), targets).mean()

    found = vmap(grad(loss), (None, 0, 0))(parameters, images, targets)
    for client in range(2):
        alone = grad(loss)(parameters, images[client], targets[client])
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name][client], gradient, rtol=1e-3, atol=1e-5)


def test_autocast(network, generator):
    images = bytes_like(2, 3, 32, 32, generator=generator)
    exact = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network(images)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.02)
