"""The GPU's program finds what patches and products find. Triton's interpreter stands in for a GPU.

The interpreter cannot multiply bfloat16; on a GPU both types are tested.
"""

import pytest
import torch
from torch import nn

from fetchsgd.clients import convolution_cuda, layer_gradients
from fetchsgd.clients.convolution_cuda import Tile

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled program is tested instead"
)
DEVICES = [
    pytest.param("cpu", torch.float16, marks=interpreted),
    pytest.param("cuda", torch.float16, marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
]
# Several tiles each way, the last ones half empty; steps, distances and edges of all kinds.
LAYERS = {
    "plain": (lambda: nn.Conv2d(17, 40, 3, padding=1), (6, 5)),
    "1x1": (lambda: nn.Conv2d(4, 8, 1, bias=False), (4, 4)),
    "strided": (lambda: nn.Conv2d(3, 5, (3, 2), stride=(2, 3), padding=(2, 1)), (9, 7)),
    "dilated": (lambda: nn.Conv2d(4, 8, 3, dilation=(2, 1), padding=2), (7, 6)),
    "left over": (lambda: nn.Conv2d(2, 4, 3, stride=3), (8, 8)),
}
CLIENTS, EACH = 3, 2


def rows_of(layer, inputs, slopes, write, decay):
    """Gradients inside of longer rows, whose other numbers must stay as they are."""
    size, outputs = layer.weight.numel(), len(layer.weight)
    rows = torch.full((CLIENTS, size + outputs + 7), 9.0, device=inputs.device)
    weight = rows[:, 3 : 3 + size].view(CLIENTS, *layer.weight.shape)
    bias = None if layer.bias is None else rows[:, 3 + size : 3 + size + outputs]
    write(layer, inputs, slopes, weight, bias, decay)
    return rows


def plainly(layer, inputs, slopes, weight, bias, decay):
    layer_gradients.convolution(layer, inputs.float(), slopes.float(), weight, bias)
    if decay is not None:
        weight += decay


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["client by client", "all at once"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_equals_products_of_patches(monkeypatch, name, layout, memory, decays, device, dtype):
    monkeypatch.setattr(convolution_cuda, "PATCH_BYTES", memory)
    monkeypatch.setattr(convolution_cuda, "LARGEST", Tile(16, 32, 16, 4))
    torch.manual_seed(0)
    make, size = LAYERS[name]
    layer = make().to(device)
    inputs = torch.randn(CLIENTS * EACH, layer.in_channels, *size, device=device).to(dtype)
    slopes = torch.randn_like(layer(inputs.float())).to(dtype)
    inputs, slopes = (x.contiguous(memory_format=layout) for x in (inputs, slopes))
    decay = torch.randn_like(layer.weight) if decays else None
    with layer_gradients.full_precision(), torch.no_grad():
        found = rows_of(layer, inputs, slopes, convolution_cuda.write, decay)
        expected = rows_of(layer, inputs, slopes, plainly, decay)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_sizes_beyond_32_bits_are_left_to_torch():
    def asked(images):
        sizes = ((2 * images, 3, 32, 32), (2 * images, 64, 32, 32), (2, 64, 3, 3, 3))
        tensors = (torch.empty(size, dtype=torch.float16, device="meta") for size in sizes)
        return convolution_cuda.is_small(*tensors)

    assert asked(5)
    assert not asked(1 << 16)


def test_tiles_are_what_products_take():
    for sizes in [(10, 27, 5), (512, 4608, 80), (64, 27, 5120)]:
        tile = convolution_cuda.tile_for(*sizes)
        for length, most, count in zip(tile, convolution_cuda.LARGEST, sizes, strict=False):
            assert length & (length - 1) == 0
            assert 16 <= length <= most
            assert length < 2 * max(count, 16)
