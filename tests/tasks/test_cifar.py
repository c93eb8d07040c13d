"""CIFAR10 and CIFAR100: files and augmentation; the data where the machine has them."""

import hashlib
import io
import os
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks.archive_server import serving
from torch.nn.functional import pad

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.simulation.sweep import plan
from fetchsgd.tasks import cifar
from fetchsgd.tasks.augment import PADDING, crop_and_flip
from fetchsgd.tasks.cifar import CIFAR10, CIFAR100, PIXELS, DataFile, cifar10, cifar100

SETS = pytest.mark.parametrize("source", [CIFAR10, CIFAR100], ids=lambda source: source.title)
PUBLISHED = Path(os.environ.get("FETCHSGD_DATA", "/nonexistent"))


def needs(source):
    there = any((PUBLISHED / sub / source.test.name).is_file() for sub in ("", source.unpacked))
    reason = f"FETCHSGD_DATA names no folder with {source.title}'s binary files"
    return pytest.mark.skipif(not there, reason=reason)


def bytes_like(*shape, generator):
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


# --- files


@SETS
def test_a_record_is_its_labels_and_three_planes(generator, source):
    """The last label is the one that is learnt: the fine one of CIFAR100."""
    images, labels = bytes_like(4, 3, 32, 32, generator=generator), torch.tensor([7, 0, 9, 9])
    coarse = torch.full((4, len(source.labels) - 1), 3, dtype=torch.uint8)
    rows = torch.cat([coarse, labels[:, None].byte(), images.flatten(1)], dim=1)
    assert rows.shape[1] == source.record_bytes
    found, found_labels = cifar.parse(rows.numpy(), source)
    assert found.dtype == torch.uint8
    assert torch.equal(found, images)
    assert torch.equal(found_labels, labels)


@pytest.fixture
def nothing_downloaded(monkeypatch):
    def refuse(*_):
        raise AssertionError("a download was started")

    monkeypatch.setattr(cifar, "fetch", refuse)


@SETS
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.usefixtures("nothing_downloaded")
def test_a_folder_may_be_the_files_own_or_hold_it(tmp_path, monkeypatch, source, inside):
    own = tmp_path / source.unpacked if inside else tmp_path
    own.mkdir(exist_ok=True)
    (own / source.test.name).touch()
    assert cifar.find_folder(source, str(tmp_path)) == own
    monkeypatch.setenv("FETCHSGD_DATA", str(tmp_path))
    assert cifar.find_folder(source, "") == own


def write(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def sentence(task, source, folder):
    with pytest.raises(UserError) as error:
        resolve({"task": {"name": f"fetchsgd.tasks.cifar:{task}", "folder": str(folder)}})
    assert source.url in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("nothing_downloaded")
def test_what_is_not_the_published_file_is_a_sentence(tmp_path):
    first = tmp_path / CIFAR10.train[0].name
    said = partial(sentence, "cifar10", CIFAR10)
    missing = said(tmp_path / "nowhere")
    assert f"there is no folder {tmp_path / 'nowhere'}" in missing
    assert "task.folder" in missing
    assert f"there is no file {first}" in said(tmp_path)
    write(first, 12)
    assert f"{first} has 12 bytes; expected 30730000" in said(tmp_path)
    write(first, 30_730_000)
    assert f"expected {CIFAR10.train[0].sha256}" in said(tmp_path)


# Few records, so that their archive is small.
SMALL = replace(CIFAR100, train=(DataFile("train.bin", 200),), test=DataFile("test.bin", 30))


def records(number, seed=0):
    """Random images; coarse and fine labels in turn."""
    generator = np.random.default_rng(seed)
    fine = np.arange(number, dtype=np.uint8) % 100
    images = generator.integers(0, 256, (number, PIXELS), dtype=np.uint8)
    return np.concatenate([(fine // 5)[:, None], fine[:, None], images], axis=1)


@pytest.mark.parametrize(("byte", "label", "limit"), [(0, 20, 20), (1, 100, 100)])
def test_labels_out_of_range_are_a_sentence(tmp_path, monkeypatch, byte, label, limit):
    monkeypatch.setattr(cifar, "CIFAR100", SMALL)
    train = records(200)
    train[17, byte] = label
    (tmp_path / "train.bin").write_bytes(train.tobytes())
    said = sentence("cifar100", SMALL, tmp_path)
    assert f"has a label {label} in byte {byte} of a record; expected labels below {limit}" in said


@pytest.fixture
def published(monkeypatch, tmp_path):
    """CIFAR100 from a server of ours: what it serves, and the folder for the download."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for file in SMALL.files:
            data = records(file.records, file.records).tobytes()
            info = tarfile.TarInfo(f"{SMALL.unpacked}/{file.name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive = content.getvalue()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("FETCHSGD_DATA", str(tmp_path / "data"))
    with serving(archive, "cifar-100-binary.tar.gz") as site:
        digest = hashlib.sha256(archive).hexdigest()
        source = replace(SMALL, url=site.url, size=len(archive), sha256=digest)
        monkeypatch.setattr(cifar, "CIFAR100", source)
        yield site, tmp_path / "data"


def test_downloaded_unpacked_and_dealt_out(published):
    site, folder = published
    task = cifar100()
    assert site.requests == [None]
    assert (folder / SMALL.unpacked / "train.bin").read_bytes() == records(200, 200).tobytes()
    assert task.train.num_clients == 200
    expected = torch.from_numpy(records(30, 30)[:, 2:]).view(-1, 3, 32, 32)
    assert torch.equal(task.test_data.inputs, expected)
    assert torch.equal(task.test_data.targets, torch.arange(30))
    assert task.model()(task.test_data.inputs[:1]).shape == (1, 100)
    cifar100(seed=1, split="dirichlet", examples_per_client=20)
    assert site.requests == [None]


@pytest.mark.usefixtures("published")
def test_a_small_network_on_the_same_data():
    task = cifar100(channels=4)
    model = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 304 + 296 + 12900
    assert model(task.test_data.inputs[:3]).shape == (3, 100)
    assert task.augment is None
    assert cifar100().augment is crop_and_flip


def test_without_the_test_file_a_client_trains_and_a_simulation_says_so(published):
    """Before its first round, and a sweep before any run."""
    _, folder = published
    cifar100()
    missing = folder / SMALL.unpacked / "test.bin"
    missing.unlink()
    cifar.read_test.cache_clear()
    given = {"task": {"name": "fetchsgd.tasks.cifar:cifar100"}, "train": {"clients_per_round": 5}}
    given["method"] = {"name": "uncompressed"}
    config = resolve(given)
    assert config.task.train.num_clients == 200
    with pytest.raises(UserError, match=f"there is no file {missing}; expected one of 92220 bytes"):
        Run(config)
    with pytest.raises(UserError, match=f"there is no file {missing}; expected one of 92220 bytes"):
        plan({**given, "sweep": [{"train.seed": 1}]}, "the test")


def test_an_archive_put_by_hand_needs_no_network(published):
    site, folder = published
    folder.mkdir()
    (folder / "cifar-100-binary.tar.gz").write_bytes(site.content)
    assert cifar100().train.num_clients == 200
    assert site.requests == []


def test_a_download_that_fails_is_a_mistake_of_the_users(published):
    site, folder = published
    site.status = 404
    said = sentence("cifar100", cifar.CIFAR100, "")
    assert f"put the published file at {folder / 'cifar-100-binary.tar.gz'} by hand" in said


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (
            "cifar10",
            {"split": "by_hand"},
            "task.split must be one of one_class, iid, dirichlet, got 'by_hand'",
        ),
        (
            "cifar10",
            {"examples_per_client": 0},
            "examples_per_client must be from 1 to 5000, got 0",
        ),
        ("cifar100", {"examples_per_client": 501}, "must be from 1 to 500, got 501"),
        ("cifar10", {"channels": -1}, "task.channels must be at least 0, got -1"),
        ("cifar100", {"channels": -1}, "task.channels must be at least 0, got -1"),
        ("cifar100", {"sizes": "power_law"}, "needs task.examples_per_client, .* at least 2"),
    ],
)
@pytest.mark.usefixtures("nothing_downloaded")
def test_mistakes(task, options, message):
    """Seen before any data is looked for."""
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": f"fetchsgd.tasks.cifar:{task}", **options}})


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


# --- the published files


def channel_statistics(images):
    """In integers: floats lose digits over 51 million pixels."""
    pixels = np.zeros((3, 256), dtype=np.int64)
    for channel in range(3):
        pixels[channel] = np.bincount(images[:, channel].numpy().ravel(), minlength=256)
    mean = pixels @ np.arange(256) / pixels.sum(axis=1)
    square = pixels @ np.arange(256) ** 2 / pixels.sum(axis=1)
    return mean, np.sqrt(square - mean**2)


@pytest.mark.parametrize(
    ("task", "source", "per_client"),
    [
        pytest.param(cifar10, CIFAR10, 5, marks=needs(CIFAR10)),
        pytest.param(cifar100, CIFAR100, 1, marks=needs(CIFAR100)),
    ],
)
def test_published_files(task, source, per_client):
    made = task(folder=str(PUBLISHED))
    classes = source.labels[-1]
    assert made.train.inputs.shape == (50_000, 3, 32, 32)
    assert made.test_data.inputs.shape == (10_000, 3, 32, 32)
    assert made.train.num_clients == 50_000 // per_client
    assert set(made.train.sizes) == {per_client}
    assert (made.train.targets.view(-1, per_client).diff(dim=1) == 0).all()
    assert torch.equal(made.train.targets.bincount(), torch.full((classes,), 50_000 // classes))
    assert torch.equal(made.test_data.targets.bincount(), torch.full((classes,), 10_000 // classes))
    mean, std = channel_statistics(made.train.inputs)
    np.testing.assert_allclose(source.mean, mean, atol=0.06)
    np.testing.assert_allclose(source.std, std, atol=0.06)


@needs(CIFAR10)
def test_the_clients_of_cifar10_are_those_of_our_first_results():
    """The digest of commit a1c2ca1, before splits had other settings."""
    train = cifar10(seed=3, folder=str(PUBLISHED)).train
    assert hashlib.sha256(train.inputs.numpy().data).hexdigest()[:16] == "506164b09bfc9e60"


@pytest.mark.parametrize(
    ("task", "per_round", "peak"),
    [
        pytest.param("cifar10", 100, 0.3, marks=needs(CIFAR10)),
        pytest.param("cifar100", 500, 0.2, marks=needs(CIFAR100)),
    ],
)
def test_the_task_in_settings(task, per_round, peak):
    config = resolve(
        {
            "task": {"name": f"fetchsgd.tasks.cifar:{task}", "folder": str(PUBLISHED)},
            "method": {"name": "local_topk"},
        }
    )
    assert config.task.name == task
    assert config.train.weight_decay == 5e-4
    assert config.train.epochs == 24
    assert config.train.clients_per_round == per_round
    assert (config.schedule.peak, config.schedule.pivot) == (peak, 5)
    assert config.method_options["k"] == 50_000
    assert cifar.read_train.cache_info().currsize == 1
