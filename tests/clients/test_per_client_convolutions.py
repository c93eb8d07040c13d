"""Products of patches find what vmap's grouped convolutions find."""

import pytest
import torch
from fourclients import gradients_of
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.layer_gradients import full_precision
from fetchsgd.clients.per_client_convolutions import per_client_convolutions
from fetchsgd.tasks.digits import network
from fetchsgd.tasks.resnet9 import ResNet9
from fetchsgd.tasks.resnet101 import Bottleneck

# Arguments of nn.Conv2d, and the size of the images.
KINDS = {
    "3x3": ((4, 5, 3), {"padding": 1}, (8, 8)),
    "more outputs than places": ((4, 70, 3), {"padding": 1}, (4, 5)),
    "without a bias": ((3, 16, 3), {"padding": 1, "bias": False}, (9, 9)),
    "channels by eights": ((16, 5, 3), {"padding": 1}, (7, 7)),
    "one channel": ((1, 4, 3), {"padding": 1}, (8, 8)),
    "1x1": ((4, 5, 1), {}, (7, 6)),
    "1x1 with a stride": ((4, 5, 1), {"stride": 2}, (7, 8)),
    "1x1 with padding": ((4, 5, 1), {"padding": 1}, (7, 8)),
    "5x5": ((2, 3, 5), {"padding": 2}, (9, 7)),
    "5x5 on one place": ((2, 3, 5), {}, (5, 5)),
    "even": ((2, 3, 2), {"padding": 1}, (5, 6)),
    "1x3": ((2, 3, (1, 3)), {"padding": (0, 1)}, (5, 6)),
    "3x1, many outputs": ((2, 60, (3, 1)), {"padding": (1, 0)}, (5, 3)),
    "2x5": ((3, 4, (2, 5)), {"padding": (1, 3)}, (6, 5)),
    "more padding than needed": ((3, 4, 3), {"padding": (2, 5)}, (4, 5)),
    "strided, odd": ((3, 4, 3), {"stride": 2, "padding": 1}, (7, 9)),
    "strided, not square": ((3, 4, (3, 2)), {"stride": (2, 3), "padding": (2, 1)}, (8, 9)),
    "stride in one direction": ((3, 40, 3), {"stride": (1, 2), "padding": 1}, (3, 4)),
    "places that no patch reaches": ((3, 4, 3), {"stride": 3}, (8, 8)),
    "more stride than patch": ((3, 4, 2), {"stride": 4}, (9, 11)),
    "dilated": ((3, 4, 3), {"dilation": (2, 3)}, (9, 10)),
    "dilated with padding": ((4, 40, 3), {"dilation": 2, "padding": 2}, (4, 4)),
    "dilated in one direction": ((3, 4, (2, 3)), {"dilation": (3, 1), "padding": (1, 2)}, (7, 5)),
    "dilated and strided": ((3, 4, 3), {"dilation": (2, 1), "stride": (1, 2)}, (8, 7)),
}
CLIENTS = 3


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def layer_and_images(name, dtype=torch.float64, examples=2):
    arguments, options, size = KINDS[name]
    layer = nn.Conv2d(*arguments, **options, dtype=dtype)
    return layer, torch.randn(CLIENTS, examples, arguments[0], *size, dtype=dtype)


def weights_of(layer):
    """Each client its own."""
    return [torch.randn(CLIENTS, *each.shape, dtype=each.dtype) for each in layer.parameters()]


def loss_of(layer, autocast=False):
    """Different slopes at all outputs; the outputs come along."""
    names = [name for name, _ in layer.named_parameters()]

    def loss(x, *weights):
        with torch.autocast("cpu", torch.bfloat16, autocast):
            y = functional_call(layer, dict(zip(names, weights, strict=True)), (x,))
        wave = torch.arange(y.numel(), dtype=x.dtype).cos().view(y.shape)
        return (y.to(x.dtype).sin() * wave).sum(), y

    return loss


def inside(layer, parts, in_dims=0, autocast=False):
    """Slopes at the images and the weights, and the outputs, from a grad inside of vmap."""
    order = tuple(range(len(parts)))
    each = vmap(grad_and_value(loss_of(layer, autocast), order, has_aux=True), in_dims)
    slopes, (_, y) = each(*parts)
    return [*slopes, y]


def outside(layer, parts, in_dims=0, autocast=False):
    """From autograd around vmap. Of what clients have in common, it finds the sum."""
    parts = [part.clone().requires_grad_() for part in parts]
    with per_client_convolutions(layer):
        losses, y = vmap(loss_of(layer, autocast), in_dims)(*parts)
    return [*torch.autograd.grad(losses.sum(), parts), y.detach()]


@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_equals_grouped_convolutions(name, examples):
    layer, x = layer_and_images(name, examples=examples)
    parts = [x, *weights_of(layer)]
    torch.testing.assert_close(outside(layer, parts), inside(layer, parts))


@pytest.mark.parametrize("name", KINDS)
def test_float32_channels_last(name):
    layer, x = layer_and_images(name, torch.float32)
    parts = [x.movedim(2, 4).contiguous().movedim(4, 2), *weights_of(layer)]
    found, expected = outside(layer, parts), inside(layer, parts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_images_in_common(name):
    layer, x = layer_and_images(name)
    parts = [x[0], *weights_of(layer)]
    in_dims = (None, *(0 for _ in parts[1:]))
    expected = inside(layer, parts, in_dims)
    expected[0] = expected[0].sum(dim=0)
    torch.testing.assert_close(outside(layer, parts, in_dims), expected)


@pytest.mark.parametrize("name", KINDS)
def test_weights_in_common(name):
    layer, x = layer_and_images(name)
    parts = [x, *(each.detach() for each in layer.parameters())]
    in_dims = (0, *(None for _ in parts[1:]))
    expected = inside(layer, parts, in_dims)
    expected[1:-1] = [part.sum(dim=0) for part in expected[1:-1]]
    torch.testing.assert_close(outside(layer, parts, in_dims), expected)


@pytest.mark.parametrize("name", KINDS)
def test_grad_inside_of_vmap(name):
    """Not as fast, but right."""
    layer, x = layer_and_images(name)
    own, shared = [x, *weights_of(layer)], [x, *(each.detach() for each in layer.parameters())]
    in_dims = (0, *(None for _ in shared[1:]))
    expected = [inside(layer, own), inside(layer, shared, in_dims)]
    with per_client_convolutions(layer):
        found = [inside(layer, own), inside(layer, shared, in_dims)]
    torch.testing.assert_close(found, expected)


def test_mapped_over_another_dimension():
    layer, x = layer_and_images("3x3")
    parts = [x.movedim(0, 2), *(weight.movedim(0, -1) for weight in weights_of(layer))]
    in_dims = (2, *(-1 for _ in parts[1:]))
    expected = inside(layer, parts, in_dims)
    expected[0] = expected[0].movedim(0, 2)
    expected[1:-1] = [part.movedim(0, -1) for part in expected[1:-1]]
    torch.testing.assert_close(outside(layer, parts, in_dims), expected)


def test_second_derivatives_are_refused():
    layer, x = layer_and_images("3x3")
    parts = [x.requires_grad_(), *weights_of(layer)]
    with per_client_convolutions(layer):
        losses, _ = vmap(loss_of(layer))(*parts)
    (slopes,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slopes.sum().backward()


@pytest.mark.parametrize("name", KINDS)
def test_autocast(name):
    """Outputs in 16 bits; slopes at weights in 32, where torch would have rounded them."""
    layer, x = layer_and_images(name, torch.float32)
    parts = [x, *weights_of(layer)]
    found, expected = outside(layer, parts, autocast=True), inside(layer, parts, autocast=True)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert found[-1].dtype == torch.bfloat16
    for ours, other in zip(found, expected, strict=True):
        assert (ours - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("name", ["3x3", "more outputs than places"])
def test_outputs_are_channels_last(name):
    """With clients folded into the batch, as vmap gives them to pooling."""
    layer, x = layer_and_images(name)
    layer.bias = None
    y = outside(layer, [x, *weights_of(layer)])[-1]
    assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


# --- the context


def test_forward_comes_back():
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
    with per_client_convolutions(layers):
        ours = layers[0].forward
        assert layers(torch.zeros(2, 8, 8)).shape == (3, 6, 6)  # an image alone
        with per_client_convolutions(layers):
            assert layers[0].forward is ours
        assert layers[0].forward is ours
    assert "forward" not in vars(layers[0])
    with pytest.raises(RuntimeError, match="channels"), per_client_convolutions(layers):
        layers(torch.zeros(1, 5, 8, 8))
    assert "forward" not in vars(layers[0])


class Heir(nn.Conv2d):
    """It might do anything."""


def test_others_are_left_alone():
    layers = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3)),
        nn.Conv1d(2, 4, 3),
        Heir(2, 4, 3),
    )
    with per_client_convolutions(layers):
        assert not any("forward" in vars(layer) for layer in layers)


# --- whole networks


class Norm(nn.GroupNorm):
    """On a CPU, and there only, torch's own asks vmap for a layout that it will not tell."""

    def __init__(self, channels):
        super().__init__(1, channels)

    def forward(self, x):
        normal = functional.layer_norm(x, x.shape[1:])
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


class Blocks(nn.Module):
    """Two blocks of ResNet101, of which the second halves the image."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Bottleneck(8, 4, 1), Bottleneck(16, 8, 2))
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        return self.last(self.blocks(x).mean(dim=(2, 3)))


def overwriting():
    """As many networks have it, to save memory."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(108, 10)
    )


# With the shape of the images.
NETWORKS = {
    "in place": (overwriting, (2, 8, 8)),
    "digits": (network, (1, 8, 8)),
    "resnet9": (lambda: ResNet9(10, (125.0,) * 3, (63.0,) * 3), (3, 32, 32)),
    "bottlenecks": (Blocks, (8, 7, 7)),
}


def case(name, dtype, n, device="cpu"):
    """Gradients, weights that differ between n clients, and a cohort with gaps."""
    make, shape = NETWORKS[name]
    gradients = gradients_of(make().to(device), dtype)
    shared = gradients.model.weights()
    images = torch.randint(256, (n, 2, *shape), dtype=torch.uint8)
    inputs = images if name == "resnet9" else images / 100 - 1
    present = torch.arange(2 * n).view(n, 2) % 4 != 3
    parts = (inputs, torch.randint(10, (n, 2)), present, torch.full((n,), 1 / n))
    weights = shared + 0.01 * torch.randn(n, len(shared)).to(device)
    return gradients, weights, Cohort(*(part.to(device) for part in parts))


def compare(found, expected, dtype, rtol):
    (ours, losses), (other, other_losses) = found, expected
    assert ours.dtype == torch.float32
    assert not ours.requires_grad
    assert not losses.requires_grad
    assert other.norm(dim=1).min() > 0
    exact = dtype == torch.float32
    torch.testing.assert_close(losses, other_losses, rtol=rtol if exact else 0.05, atol=1e-5)
    # Eight layers deep, each rounds what the one behind it has rounded.
    assert (ours - other).norm() < (rtol if exact else 0.2) * other.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, dtype, monkeypatch):
    monkeypatch.setattr("fetchsgd.tasks.resnet101.LayerNorm", Norm)
    gradients, weights, cohort = case(name, dtype, 2)
    expected = gradients.by_vmap(weights, cohort)
    compare(gradients.by_per_client_convolutions(weights, cohort), expected, dtype, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_gpu(name, dtype):
    gradients, weights, cohort = case(name, dtype, 8, "cuda")
    with full_precision():
        expected = gradients.by_vmap(weights, cohort)
        compare(gradients(weights, cohort), expected, dtype, 1e-3)
