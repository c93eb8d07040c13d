"""CIFAR10: files, augmentation and network; the files themselves where the machine has them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import pad

from fetchsgd.config import resolve
from fetchsgd.errors import UserError
from fetchsgd.tasks import cifar, cross_entropy
from fetchsgd.tasks.augment import PADDING, crop_and_flip
from fetchsgd.tasks.cifar import DIGESTS, FILE_BYTES, MEAN, SOURCE, STD, UNPACKED, cifar10
from fetchsgd.tasks.resnet9 import ResNet9, pooled

PUBLISHED = Path(os.environ.get("FETCHSGD_DATA", "/nonexistent"))
needs_data = pytest.mark.skipif(
    not any((PUBLISHED / sub / "data_batch_1.bin").is_file() for sub in ("", UNPACKED)),
    reason="FETCHSGD_DATA names no folder with CIFAR10's binary files",
)


def bytes_like(*shape, generator):
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


# --- files


def test_a_record_is_a_label_and_three_planes(generator):
    images, labels = bytes_like(4, 3, 32, 32, generator=generator), torch.tensor([7, 0, 9, 9])
    rows = torch.cat([labels[:, None].byte(), images.flatten(1)], dim=1)
    found, found_labels = cifar.parse(rows.numpy())
    assert found.dtype == torch.uint8
    assert torch.equal(found, images)
    assert torch.equal(found_labels, labels)


@pytest.mark.parametrize("inside", ["", UNPACKED])
def test_a_folder_may_be_the_files_own_or_hold_it(tmp_path, monkeypatch, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    assert cifar.find_folder(str(tmp_path)) == tmp_path / inside
    monkeypatch.setenv("FETCHSGD_DATA", str(tmp_path))
    assert cifar.find_folder("") == tmp_path / inside
    monkeypatch.delenv("FETCHSGD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache/fetchsgd" / inside).mkdir(parents=True)
    assert cifar.find_folder("") == tmp_path / ".cache/fetchsgd" / inside


def write(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def test_what_is_not_the_published_file_is_a_sentence(tmp_path):
    first = tmp_path / next(iter(DIGESTS))

    def sentence(folder=tmp_path):
        with pytest.raises(UserError) as error:
            resolve({"task": {"name": "cifar10", "folder": str(folder)}})
        assert SOURCE in str(error.value)
        return str(error.value)

    missing = sentence(tmp_path / "nowhere")
    assert f"there is no folder {tmp_path / 'nowhere'}" in missing
    assert "task.folder" in missing
    assert f"there is no file {first}" in sentence()
    write(first, 12)
    assert f"{first} has 12 bytes; expected {FILE_BYTES}" in sentence()
    write(first, FILE_BYTES)
    assert f"expected {DIGESTS[first.name]}" in sentence()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "by_hand"}, "task.split must be one of one_class, iid, got 'by_hand'"),
        ({"examples_per_client": 0}, "task.examples_per_client must be from 1 to 5000, got 0"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "cifar10", **options}})


# --- augmentation


def test_equals_pad_cut_and_mirror_one_by_one(generator):
    images = bytes_like(200, 3, 32, 32, generator=generator)
    state = generator.get_state()
    found = crop_and_flip(images, generator)
    generator.set_state(state)
    corners = torch.randint(2 * PADDING + 1, (2, 200, 1), generator=generator)
    mirrored = torch.randint(2, (200, 1), generator=generator)
    padded = pad(images.float(), (PADDING,) * 4, mode="reflect").byte()
    for i in range(200):
        top, left = corners[:, i, 0].tolist()
        cut = padded[i, :, top : top + 32, left : left + 32]
        assert torch.equal(found[i], cut.flip(2) if mirrored[i] else cut)


def test_every_corner_and_both_sides_are_drawn_alike(generator):
    """Pixels that name their place tell what was drawn: 162 outcomes, 100 times each on average.

    The statistic has mean 161 and deviation 18; a correct program passes 300 once in 10^9 seeds.
    """
    side = torch.arange(32)
    place = torch.stack([side[:, None].expand(32, 32), side.expand(32, 32)])
    found = crop_and_flip(place.expand(16200, 2, 32, 32), generator)
    mirrored = (found[:, 1, 0, 10] > found[:, 1, 0, 20]).long()
    # In the middle of a cut nothing is reflected, so that its pixels give the corner away.
    down = found[:, 0, 10, 0] - 10 + PADDING
    across = torch.where(mirrored.bool(), found[:, 1, 0, 21], found[:, 1, 0, 10]) - 10 + PADDING
    counts = torch.bincount((down * 9 + across) * 2 + mirrored, minlength=162)
    assert counts.shape == (162,)
    assert float(((counts - 100.0) ** 2 / 100).sum()) < 300


def test_a_constant_image_stays_and_the_layout_too(generator):
    images = torch.full((5, 3, 32, 32), 7, dtype=torch.uint8)
    found = crop_and_flip(images, generator)
    assert torch.equal(found, images)
    assert found.is_contiguous()


# --- network


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


# --- the published files


@needs_data
def test_published_files():
    task = cifar10(folder=str(PUBLISHED))
    assert task.train.inputs.shape == (50_000, 3, 32, 32)
    assert task.test_inputs.shape == (10_000, 3, 32, 32)
    assert task.train.num_clients == 10_000
    assert set(task.train.sizes) == {5}
    assert (task.train.targets.view(-1, 5).diff(dim=1) == 0).all()
    assert torch.equal(task.test_targets.bincount(), torch.full((10,), 1000))
    # In integers: floats lose digits over 51 million pixels.
    pixels = np.zeros((3, 256), dtype=np.int64)
    for channel in range(3):
        pixels[channel] = np.bincount(task.train.inputs[:, channel].numpy().ravel(), minlength=256)
    mean = pixels @ np.arange(256) / pixels.sum(axis=1)
    square = pixels @ np.arange(256) ** 2 / pixels.sum(axis=1)
    np.testing.assert_allclose(MEAN, mean, atol=0.06)
    np.testing.assert_allclose(STD, np.sqrt(square - mean**2), atol=0.06)


@needs_data
def test_the_task_in_settings():
    config = resolve(
        {"task": {"name": "cifar10", "folder": str(PUBLISHED)}, "method": {"name": "local_topk"}}
    )
    assert config.train.weight_decay == 5e-4
    assert config.method_options["k"] == 50_000
    assert cifar.read_cifar10.cache_info().currsize == 1
