"""FEMNIST: folders, the cache, augmentation, network; real writers where the machine has them."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.errors import UserError
from fetchsgd.methods import METHODS
from fetchsgd.runs.settings import resolve
from fetchsgd.tasks import cross_entropy
from fetchsgd.tasks.augment import Warp, fetched_from, warp_writing
from fetchsgd.tasks.femnist import CACHE, femnist, load, read_cache
from fetchsgd.tasks.leaf import PIXELS
from fetchsgd.tasks.resnet101 import ResNet101
from fetchsgd.vector import FlatModel

module = sys.modules["fetchsgd.tasks.femnist"]  # the package calls the function so

REAL = Path(os.environ.get("FETCHSGD_DATA", "/nonexistent")) / "femnist"
needs_data = pytest.mark.skipif(
    not (REAL / "data/train").is_dir(), reason="FETCHSGD_DATA names no folder with femnist/data"
)


@pytest.fixture(autouse=True)
def forget():
    load.cache_clear()


def write_shard(folder, split, name, labels):
    """Users with these labels; every pixel of an image is its label divided by 255."""
    data = {
        user: {"x": [[label / 255] * PIXELS for label in own], "y": own}
        for user, own in labels.items()
    }
    sizes = [len(own) for own in labels.values()]
    within = folder / "data" / split
    within.mkdir(parents=True, exist_ok=True)
    content = {"users": list(labels), "num_samples": sizes, "user_data": data}
    (within / name).write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
    write_shard(tmp_path, "train", "all_data_0.json", {"ada": [1, 9], "bob": [3]})
    write_shard(tmp_path, "train", "all_data_1.json", {"eve": [4, 5, 6]})
    write_shard(tmp_path, "test", "all_data_0.json", {"ada": [7], "stranger": [8, 2]})
    return tmp_path


def shards_of(folder, split="train"):
    return sorted((folder / "data" / split).glob("*.json"))


# --- the task


def test_clients_are_the_writers_of_the_training_set(folder):
    task = femnist(folder=str(folder))
    assert task.train.sizes.tolist() == [2, 1, 3]
    assert task.train.targets.tolist() == [1, 9, 3, 4, 5, 6]
    assert task.test_targets.tolist() == [7, 8, 2]
    for images, targets in [
        (task.train.inputs, task.train.targets),
        (task.test_inputs, task.test_targets),
    ]:
        assert images.dtype == torch.uint8
        assert images.shape[1:] == (1, 28, 28)
        assert (images == targets[:, None, None, None]).all()


@pytest.mark.parametrize(("label", "classes"), [(9, 10), (10, 62), (61, 62)])
def test_digits_alone_need_ten_classes(folder, label, classes):
    write_shard(folder, "test", "all_data_1.json", {"zoe": [label]})
    with torch.device("meta"):
        assert femnist(folder=str(folder)).model().last.out_features == classes


def test_a_small_network_on_the_same_data(folder):
    task = femnist(folder=str(folder), channels=4)
    model = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 4842
    assert model(task.test_inputs).shape == (3, 10)
    assert task.augment is None
    with pytest.raises(ValueError, match=r"task\.channels must be at least 0, got -1"):
        femnist(folder=str(folder), channels=-1)


def test_users_without_samples_are_left_out_with_a_note(folder):
    write_shard(folder, "train", "all_data_2.json", {"nobody": [], "no one": [], "zoe": [1]})
    write_shard(folder, "test", "all_data_2.json", {"zoe": []})
    with pytest.warns(UserWarning, match="2 of 6 users in .* left out, such as 'nobody'"):
        task = femnist(folder=str(folder))
    assert task.train.sizes.tolist() == [2, 1, 3, 1]


@pytest.mark.parametrize("method", METHODS)
def test_settings_for_every_method(folder, method):
    config = resolve(
        {"task": {"name": "femnist", "folder": str(folder)}, "method": {"name": method}},
        ["local.steps=1"] if method == "sparse_loco" else [],
    )
    assert config.train.clients_per_round == 3
    assert config.train.epochs == (0.25 if method == "fedavg" else 1)
    assert config.local.batch_size == (20 if method == "fedavg" else 0)


# --- folders


def sentence(folder):
    with pytest.raises(UserError) as error:
        resolve({"task": {"name": "femnist", "folder": str(folder)}})
    return str(error.value)


def test_missing_folders_say_how_to_make_the_data(folder, tmp_path):
    told = [sentence(tmp_path / "nowhere")]
    for path in shards_of(folder, "test"):
        path.unlink()
    told.append(sentence(folder))
    assert f"there is no folder {tmp_path / 'nowhere/data/train'}" in told[0]
    assert f"there is no file *.json with FEMNIST's data in {folder / 'data/test'}" in told[1]
    for text in told:
        assert "TalwalkarLab/leaf" in text
        assert "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample" in text
        assert "task.folder" in text


def test_default_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("FETCHSGD_DATA", str(tmp_path))
    assert module.find_folder("") == tmp_path / "femnist"
    monkeypatch.delenv("FETCHSGD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert module.find_folder("") == tmp_path / ".cache/fetchsgd/femnist"


def test_mistakes_in_files_are_sentences(folder):
    write_shard(folder, "train", "other_0.json", {"bob": [3]})
    assert "user 'bob' is in another file of" in sentence(folder)
    write_shard(folder, "train", "other_0.json", {"zoe": [62]})
    assert "other_0.json, user 'zoe': y[0] is 62; labels must be whole" in sentence(folder)
    (folder / "data/train/other_0.json").unlink()
    (folder / "data/train/lost.json").symlink_to("nowhere")
    assert "lost.json: No such file" in sentence(folder)
    (folder / "data/train/lost.json").unlink()
    write_shard(folder, "test", "all_data_0.json", {"zoe": []})
    assert "no user in" in sentence(folder)


# --- the cache


def equal(left, right):
    return all(
        np.array_equal(a, b)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def reading(folder):
    """What is loaded now, and how many shards were read for it."""
    load.cache_clear()
    calls = []
    with pytest.MonkeyPatch.context() as patched:
        read = module.read_users
        patched.setattr(module, "read_users", lambda path: calls.append(path) or read(path))
        shards = module.find_shards(folder)
        found = load(folder / "data" / CACHE, tuple(shards.items()), module.key_of(shards))
    return found, len(calls)


def test_shards_are_read_once(folder):
    first, reads = reading(folder)
    again, more = reading(folder)
    assert (reads, more) == (3, 0)
    assert equal(first, again)
    assert [path.name for path in (folder / "data").iterdir() if path.is_file()] == [CACHE]
    # Whatever changes the shards: content and size, time alone, another file, another name.
    write_shard(folder, "train", "all_data_1.json", {"eve": [4, 5]})
    assert reading(folder)[1] == 3
    os.utime(shards_of(folder)[0], ns=(0, 1))
    assert reading(folder)[1] == 3
    write_shard(folder, "test", "all_data_1.json", {"eve": [1]})
    assert reading(folder)[1] == 4
    shards_of(folder)[0].rename(folder / "data/train/renamed.json")
    assert reading(folder)[1] == 4
    assert reading(folder)[1] == 0


def test_a_damaged_cache_is_never_trusted(folder):
    """Cut off anywhere, or with a byte changed: None, or, where nobody reads, what was kept."""
    expected, _ = reading(folder)
    path = folder / "data" / CACHE
    key = module.key_of(module.find_shards(folder))
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for place in draw.integers(len(whole), size=150):
        path.write_bytes(whole[:place])
        assert read_cache(path, key) is None
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.integers(8)
        path.write_bytes(flipped)
        found = read_cache(path, key)
        assert found is None or equal(found, expected)
    assert equal(reading(folder)[0], expected)
    path.write_bytes(b"")
    assert reading(folder)[1] == 3
    assert path.read_bytes() == whole


def test_a_cache_cannot_carry_code(folder):
    shards = module.find_shards(folder)
    key = module.key_of(shards)
    path = folder / "data" / CACHE
    np.savez(path, key=np.array(key), train_images=np.array([print], dtype=object))
    assert read_cache(path, key) is None


def test_where_no_cache_can_be_written_the_run_goes_on(folder):
    (folder / "data" / CACHE).mkdir()
    with pytest.warns(UserWarning, match=f"cannot write .*{CACHE}: Is a directory; the next run"):
        task = femnist(folder=str(folder))
    assert task.train.num_clients == 3
    assert not list((folder / "data").glob("*.partial"))


# --- augmentation


def writing(n, generator):
    """Noise in the middle of white paper."""
    images = torch.full((n, 1, 28, 28), 255, dtype=torch.uint8)
    images[:, :, 8:20, 8:20] = torch.randint(256, (n, 1, 12, 12), generator=generator).byte()
    return images


def test_without_magnitudes_nothing_happens(generator):
    images = torch.randint(256, (50, 1, 28, 28), generator=generator).byte()
    found = warp_writing(images, generator, Warp(0, 0, 0, 0))
    assert found.dtype == torch.uint8
    assert torch.equal(found, images)


def test_the_same_generator_gives_the_same_images(generator):
    images = writing(50, generator)
    first, again, other = (
        warp_writing(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.is_contiguous()


def test_paper_stays_white(generator):
    blank = torch.full((50, 1, 28, 28), 255, dtype=torch.uint8)
    assert torch.equal(warp_writing(blank, generator), blank)
    corners = warp_writing(writing(200, generator), generator)[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == 255).all()


def test_a_shift_alone_is_a_crop_after_padding_with_paper(generator):
    """Each of the 25 crops is drawn; with 400 images one is missed once in 500,000 seeds."""
    images = torch.randint(256, (400, 1, 28, 28), generator=generator).byte()
    found = warp_writing(images, generator, Warp(2, 0, 0, 0))
    padded = pad(images, (2,) * 4, value=255)
    seen = torch.zeros(400, 5, 5, dtype=torch.bool)
    for top in range(5):
        for left in range(5):
            cut = padded[:, :, top : top + 28, left : left + 28]
            seen[:, top, left] = (found == cut).flatten(1).all(1)
    assert (seen.flatten(1).sum(1) == 1).all()
    assert seen.any(0).all()


def test_equals_fetching_pixel_by_pixel(generator):
    """Turned, stretched, slanted and moved: between four pixels by hand."""
    images = torch.randint(256, (3, 1, 28, 28), generator=generator).byte()
    state = generator.get_state()
    found = warp_writing(images, generator)
    generator.set_state(state)
    matrices = fetched_from(3, 28, generator, Warp()).double().numpy()
    ink = np.pad(255.0 - images[:, 0].numpy(), ((0, 0), (20, 20), (20, 20)))
    centres = (np.arange(28) + 0.5) / 14 - 1
    for i, matrix in enumerate(matrices):
        for row, column in np.random.default_rng(i).integers(28, size=(40, 2)):
            x, y = matrix @ [centres[column], centres[row], 1]
            x, y = (x + 1) * 14 - 0.5 + 20, (y + 1) * 14 - 0.5 + 20
            left, top = int(np.floor(x)), int(np.floor(y))
            right, down = x - left, y - top
            square = ink[i, top : top + 2, left : left + 2]
            value = [1 - down, down] @ square @ [1 - right, right]
            assert abs(255 - value - int(found[i, 0, row, column])) <= 0.51


def test_warps_stay_within_their_magnitudes(generator):
    most = Warp(shift=3, turn=10, scale=0.2, slant=0)
    matrices = fetched_from(1000, 28, generator, most)
    area = torch.linalg.det(matrices[:, :, :2])
    assert 0.8**2 <= area.min() < 0.75
    assert 1.3 < area.max() <= 1.2**2
    angles = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]).rad2deg()
    assert 9 < angles.abs().max() <= 10.001
    assert set((14 * matrices[:, :, 2]).round(decimals=3).unique().tolist()) == set(range(-3, 4))


# --- network


@pytest.fixture
def network():
    """All 101 layers, but narrow."""
    torch.manual_seed(0)
    return ResNet101(10, width=4)


@pytest.mark.parametrize(("classes", "weights"), [(62, 42_618_366), (10, 42_511_818)])
def test_number_of_weights(classes, weights):
    with torch.device("meta"):
        module = ResNet101(classes)
    assert sum(p.numel() for p in module.parameters()) == weights
    assert not module.state_dict().keys() - dict(module.named_parameters()).keys()
    counted = sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in module.modules())
    assert counted == 101 + 4  # the four shortcuts that change the size do not count


def test_images_with_and_without_a_channel(network, generator):
    images = writing(2, generator)
    outputs = network(images)
    assert outputs.shape == (2, 10)
    assert torch.equal(network(images.squeeze(1)), outputs)


def test_paper_is_zero_and_a_blank_page_is_harmless(network):
    seen = []
    network.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    outputs = network(torch.full((1, 1, 28, 28), 255, dtype=torch.uint8))
    assert (seen[0] == 0).all()
    assert outputs.isfinite().all()
    network(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    assert (seen[1] == 1).all()


def test_examples_do_not_mix(network, generator):
    images = writing(3, generator)
    torch.testing.assert_close(network(images)[:1], network(images[:1]), rtol=1e-4, atol=1e-5)


def test_gradients_of_clients_in_one_pass(network, generator):
    """The fast way to every client's own gradient suits the network."""
    cohort = Cohort(
        writing(4, generator).view(2, 2, 1, 28, 28),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[True, True], [True, False]]),
        torch.tensor([0.5, 0.5]),
    )
    model = FlatModel(network)
    gradients = ClientGradients(model, cross_entropy, torch.float32)
    found, losses = gradients(model.weights(), cohort)
    assert gradients.one_pass_serves
    assert found.shape == (2, model.dim)
    assert losses.isfinite().all()
    # Every tensor learns from the first step on.
    assert all(part.abs().sum() > 0 for part in torch.split(found, model.sizes, dim=1))


def test_autocast(network, generator):
    images = writing(2, generator)
    exact = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network(images)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.1, atol=0.1)


# --- real writers


@needs_data
def test_real_writers():
    task = femnist(folder=str(REAL))
    assert task.train.num_clients >= 500
    assert task.train.sizes.min() >= 1
    assert task.train.sizes.sum() == len(task.train.inputs)
    # Dark on white: paper is the most frequent level, and images are light in the mean.
    for images in (task.train.inputs[:2000], task.test_inputs[:2000]):
        assert images.flatten().bincount(minlength=256).argmax() == 255
        assert images.float().mean() > 180
    assert len(task.train.targets.unique()) in (10, 62)
    again = femnist(folder=str(REAL))
    assert again.train.inputs.data_ptr() == task.train.inputs.data_ptr()
