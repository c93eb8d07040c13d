"""Examples that are read when their turn comes: the same run as from memory, from any source."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tinytask import tiny
from torch.utils.data import Dataset, TensorDataset

from fetchsgd.clients.gathering import Gatherer
from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks import from_arrays, from_dataset, from_datasets, from_hugging_face
from fetchsgd.tasks.stored import Arrays, StoredData

TINY = tiny()
X, Y = TINY.train.inputs, TINY.train.targets
OWNER = np.repeat(np.arange(TINY.train.num_clients), TINY.train.sizes)
MIXED = np.random.default_rng(0).permutation(len(X))  # as data come, not client by client


def on_disk(folder):
    for name, part in (("x", X), ("y", Y)):
        np.save(folder / f"{name}.npy", part.numpy()[MIXED])
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
    assert isinstance(x, np.memmap)
    return from_arrays(x, y, OWNER[MIXED])


def one_dataset(_):
    return from_dataset(TensorDataset(X[MIXED], Y[MIXED]), OWNER[MIXED])


def a_dataset_each(_):
    cut = torch.from_numpy(TINY.train.sizes).tolist()
    pairs = zip(X.split(cut), Y.split(cut), strict=True)
    return from_datasets([TensorDataset(x, y) for x, y in pairs])


def hugging_face(_):
    datasets = pytest.importorskip("datasets")
    names = [f"user {number:02}" for number in OWNER[MIXED]]
    rows = {"who": names, "x": X[MIXED].tolist(), "y": Y[MIXED].tolist()}
    table = datasets.Dataset.from_dict(rows).with_format("torch")
    return from_hugging_face(table, client="who", inputs="x", targets="y")


SOURCES = [on_disk, one_dataset, a_dataset_each, hugging_face]


def sorted_rows(batch):
    """The order of a client's own examples is that of the source."""
    rows = torch.cat([batch.inputs, batch.targets[:, None], batch.shares[:, None]], dim=1)
    return rows[np.lexsort(rows.T.numpy())]


@pytest.mark.parametrize("source", SOURCES)
def test_clients_have_the_same_examples_as_in_memory(source, tmp_path):
    data = source(tmp_path)
    assert data.sizes.tolist() == TINY.train.sizes.tolist()
    clients = np.array([7, 2, 9])
    expected = Gatherer(TINY.train, "uniform", 0).gather_batch(clients, 0)
    assert torch.equal(
        sorted_rows(Gatherer(data, "uniform", 0).gather_batch(clients, 0)), sorted_rows(expected)
    )
    alone = Gatherer(data.only(7), "uniform", 0).gather_batch(np.array([0]), 0)
    there = Gatherer(TINY.train.only(7), "uniform", 0).gather_batch(np.array([0]), 0)
    assert torch.equal(sorted_rows(alone), sorted_rows(there))


@pytest.mark.parametrize("method", ["fetchsgd", "local_topk"])
def test_a_run_is_the_same_as_from_memory(method, tmp_path):
    tasks = {"memory": TINY, "disk": replace(TINY, train=a_dataset_each(tmp_path))}
    results = []
    for name, task in tasks.items():
        config = replace(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}))
        result = Run(replace(config, task=task)).execute(tmp_path / name)
        results.append({key: result[key] for key in ("value", "test_loss", "wire_upload_bytes")})
    assert results[0] == results[1]


class Counts(Dataset):
    """Says which examples were asked for."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        self.asked.append(i)
        return X[i].numpy(), int(Y[i])


def test_only_a_rounds_examples_are_read_each_once():
    dataset = Counts()
    data = from_dataset(dataset, OWNER)
    assert dataset.asked == []
    Gatherer(data, "uniform", 0).gather(np.array([3, 5]), 0)
    assert sorted(dataset.asked) == np.flatnonzero(np.isin(OWNER, [3, 5])).tolist()


# --- several tensors, and what changes examples


def noisy(inputs, generator):
    return inputs + torch.randn(inputs.shape, generator=generator)


def test_a_transform_draws_by_round_client_and_example_alone():
    data = from_dataset(TensorDataset(X, Y), OWNER, transform=noisy, seed=5)

    def inputs(data, *clients, round=0):
        cohort = Gatherer(data, "uniform", 0).gather(np.array(clients), round)
        return [own[there] for own, there in zip(cohort.inputs, cohort.present, strict=True)]

    first = inputs(data, 3, 7)
    assert torch.equal(first[1], inputs(data, 7, 2, 5)[0])
    assert torch.equal(first[1], inputs(data.only(7), 0)[0])  # as on a real client
    assert not torch.isclose(first[1], inputs(data, 7, round=1)[0]).any()
    noise = first[1] - X[OWNER == 7]
    assert len(noise.unique()) == noise.numel()  # examples differ too


def test_several_inputs_stay_a_dict_or_a_tuple():
    named = from_arrays({"a": X.numpy(), "b": Y.numpy()}, Y.numpy(), OWNER)
    inputs, targets = named.read(np.array([[0, 1], [2, 2]]))
    assert inputs["a"].shape == (2, 2, 5)
    assert torch.equal(inputs["b"], targets)
    pairs = [((X[i], Y[i]), Y[i]) for i in range(len(X))]
    inputs, _ = from_dataset(pairs, OWNER).read(np.array([4, 1]))
    assert isinstance(inputs, tuple)
    assert torch.equal(inputs[0], X[[4, 1]])


# --- mistakes


class Short(Arrays):
    def read(self, rows):
        return super().read(rows[:1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_arrays(X, Y, OWNER), "from_arrays takes numpy arrays.* got a Tensor"),
        (lambda: from_arrays(X.numpy(), Y.numpy()[1:], OWNER), "targets have .* rows; there must"),
        (lambda: from_dataset(iter([]), OWNER), "with __len__ and __getitem__, got a list_itera"),
        (lambda: from_dataset(TensorDataset(X), OWNER).read(np.arange(2)), "item 0 .* be a pair"),
        (lambda: from_dataset([(X[0], 1), (X[0, :2], 1)], [0, 0]).read(np.arange(2)), "one batch"),
        (lambda: from_dataset(TensorDataset(X, Y), OWNER[1:]), "client_of has .* numbers for"),
        (lambda: from_datasets([]), "a dataset for each client, got none"),
        (lambda: from_datasets([[(X[0], 1)], []]), "dataset of client 1 is empty; leave it out"),
        (lambda: from_hugging_face([1], client="a", inputs="b", targets="c"), "got a list; of sev"),
        (
            lambda: StoredData(Short(X.numpy(), Y.numpy()), np.arange(5), np.array([0, 5])).read(
                np.arange(3)
            ),
            "was asked for 3 examples and gave 1",
        ),
    ],
)
def test_a_mistake_is_a_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_column_that_is_missing_or_ragged_is_a_sentence():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"who": [1, 2], "x": [[1.0], [2.0, 3.0]], "y": [0, 1]})
    with pytest.raises(UserError, match="no column 'text'; it has who, x, y"):
        from_hugging_face(table, client="who", inputs="text", targets="y")
    ragged = from_hugging_face(table, client="who", inputs=["x"], targets="y")
    with pytest.raises(UserError, match="column 'x' does not become a tensor.*pad sequences"):
        ragged.read(np.arange(2))
