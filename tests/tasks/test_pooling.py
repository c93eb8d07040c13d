"""pooled is relu(max_pool2d(x, 2)), in values and gradients, whoever computes it.

Triton's interpreter stands in for a GPU.
"""

import pytest
import torch
from torch.func import grad, grad_and_value, vjp, vmap
from torch.nn.functional import max_pool2d, relu

from fetchsgd.tasks import pooling
from fetchsgd.tasks.pooling import Pooling, pooled

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Several images in one program, the last program half empty; a line longer than a program; one
# window; channels by which no address divides.
SHAPES = [(40, 3, 4, 6), (2, 600, 2, 4), (1, 1, 2, 2), (2, 5, 6, 10)]
INF, NAN = float("inf"), float("nan")
LAYOUTS = [torch.channels_last, torch.contiguous_format]
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)


@pytest.fixture(params=["plain", pytest.param("interpreted", marks=interpreted)])
def ours(request, monkeypatch):
    """The autograd function that stands behind `pooled` on a GPU."""
    if request.param == "plain":
        monkeypatch.setattr(pooling, "programs_on", lambda _: None)
    else:
        pytest.importorskip("triton")
        assert pooling.programs_on("cpu") is not None
    return lambda x: Pooling.apply(x)[0]


def usual(x):
    return relu(max_pool2d(x, 2))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def awkward(*shape):
    """Of few values, so that there are ties of all kinds, and windows without a positive one."""
    values = torch.tensor([-INF, -2.0, -1.0, -0.0, 0.0, 1.0, 3.0, INF, NAN])
    picks = torch.randint(len(values), shape, generator=torch.Generator().manual_seed(0))
    # All of them in the first image, only -inf in the second, one more in each that follows.
    limits = (torch.arange(shape[0]) - 1) % len(values)
    return values[torch.minimum(picks, limits.view(-1, 1, 1, 1))]


def channels_last(x, dtype=torch.float32):
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def assert_same(got, expected):
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def assert_agree(ours, x, slopes):
    """In values, and in gradients for these slopes."""
    results = []
    for function in (ours, usual):
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        results.append((y.detach(), *torch.autograd.grad(y, leaf, slopes)))
    for got, expected in zip(*results, strict=True):
        assert_same(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(ours, shape, dtype):
    n, channels, height, width = shape
    slopes = normal(n, channels, height // 2, width // 2, seed=1).to(dtype)
    for x in (normal(*shape), awkward(*shape)):
        assert_agree(ours, channels_last(x, dtype), slopes)


@pytest.mark.parametrize(
    ("window", "choice"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0),
        ([0.0, 2.0, 2.0, 1.0], 1),
        ([-0.0, 0.0, -0.0, 0.0], 4),
        ([-1.0, -2.0, -INF, -1.0], 4),
        ([NAN, 5.0, 1.0, INF], 0),
        ([5.0, NAN, NAN, 1.0], 2),  # the last of several, as in torch
        ([-1.0, -1.0, 0.0, 1e-30], 3),
    ],
)
def test_choices(window, choice):
    pytest.importorskip("triton")
    x = channels_last(torch.tensor(window).view(1, 1, 2, 2))
    for pool in (pooling.pool, pooling.pool_plainly):
        y, choices = pool(x)
        assert_same(y, usual(x))
        assert choices.dtype == torch.uint8
        assert choices.item() == choice


@interpreted
def test_results_are_channels_last():
    pytest.importorskip("triton")
    x = channels_last(normal(2, 5, 6, 10)).requires_grad_()
    y, choices = Pooling.apply(x)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    for tensor in (y, choices, slopes):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert not choices.requires_grad


def test_slopes_of_any_layout(ours):
    x = channels_last(normal(2, 5, 6, 10))
    seen_everywhere = torch.tensor(3.0).expand(2, 5, 3, 5)
    every_other = normal(2, 5, 3, 10, seed=1)[..., ::2]
    for slopes in (seen_everywhere, every_other, every_other.contiguous()):
        assert_agree(ours, x, slopes)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_torch_does_itself(layout):
    """All that is on a CPU. Odd sizes leave out a row or a column."""
    for shape in ((2, 3, 5, 6), (2, 3, 6, 7), (2, 3, 4, 4), (0, 3, 4, 4)):
        x = awkward(*shape).contiguous(memory_format=layout)
        assert_agree(pooled, x, torch.ones_like(usual(x)))
        assert "Pooling" not in pooled(x.requires_grad_()).grad_fn.name()
    assert_same(pooled(normal(3, 4, 4)), usual(normal(3, 4, 4)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_vmap_of_grad_equals_a_loop(ours, layout, dim):
    x = normal(6, 3, 4, 8).contiguous(memory_format=layout).unflatten(0, (3, 2)).movedim(0, dim)
    scales = normal(3, 3, 1, 1, seed=1)

    def loss(scale, x, function):
        return (function(x * scale) ** 2).sum()

    each = vmap(grad_and_value(lambda scale, x: loss(scale, x, ours), (0, 1)), (0, dim))
    (by_scale, by_x), losses = each(scales, x)
    for i in range(3):
        scale, own = scales[i].clone().requires_grad_(), x.select(dim, i).clone().requires_grad_()
        expected = loss(scale, own, usual)
        torch.testing.assert_close(losses[i], expected.detach())
        by_own = torch.autograd.grad(expected, (scale, own))
        torch.testing.assert_close((by_scale[i], by_x[i]), by_own)


def test_vmap_over_slopes_alone(ours):
    x, slopes = channels_last(normal(2, 3, 4, 6)), normal(4, 2, 3, 2, 3, seed=1)
    (together,) = vmap(vjp(ours, x)[1])(slopes)
    for got, own in zip(together, slopes, strict=True):
        assert_same(got, vjp(usual, x)[1](own)[0])


def test_autocast_keeps_the_dtype(ours):
    for dtype in DTYPES:
        with torch.autocast("cpu", torch.bfloat16):
            assert ours(channels_last(normal(1, 2, 4, 4), dtype)).dtype == dtype


def test_a_second_derivative_is_refused(ours):
    x = channels_last(normal(1, 2, 4, 4)).requires_grad_()
    (slopes,) = torch.autograd.grad((ours(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        slopes.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (50, 128, 32, 32)], ids=str)
def test_on_the_gpu(shape, dtype):
    """Launched one by one, by vmap, and as a CUDA graph."""
    n, channels, height, width = shape
    slopes = normal(n, channels, height // 2, width // 2, seed=1).to("cuda", dtype)
    for x in (normal(*shape), awkward(*shape)):
        x = channels_last(x.cuda(), dtype)
        assert "Pooling" in pooled(x.requires_grad_()).grad_fn.name()
        assert_agree(pooled, x, slopes)
        assert_agree(pooled, x.contiguous(), slopes)
        assert_agree(pooled, x, slopes[:1, :1, :1, :1].expand(slopes.shape))
        pair = torch.cat([-x, x]).detach()
        for given in (pair, pair.contiguous()):
            each = vmap(grad(lambda x: (pooled(x) * slopes).sum()))(given.unflatten(0, (2, n)))
            assert_same(each[0], grad(lambda x: (usual(x) * slopes).sum())(pair[:n]))

    leaf = channels_last(normal(*shape).cuda(), dtype).requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = pooled(leaf)
        (found,) = torch.autograd.grad(y, leaf, slopes)
    with torch.no_grad():
        leaf.neg_()
    graph.replay()
    fresh = leaf.detach().requires_grad_()  # whose gradient was not asked for on another stream
    assert_same(y.detach(), usual(fresh).detach())
    assert_same(found, torch.autograd.grad(usual(fresh), fresh, slopes)[0])
