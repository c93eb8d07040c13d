import pytest
import torch

from fetchsgd import SparseVector


def vector(dim, entries):
    indices = torch.tensor(sorted(entries), dtype=torch.int64)
    return SparseVector(dim, indices, torch.tensor([float(entries[int(i)]) for i in indices]))


def test_adds_and_scales_as_its_dense_form_does():
    a, b = vector(6, {0: 1, 3: 2}), vector(6, {3: 5, 5: -1})
    assert torch.equal((a + b).to_dense(), a.to_dense() + b.to_dense())
    assert torch.equal((a - b).to_dense(), a.to_dense() - b.to_dense())
    assert torch.equal((2.5 * a).to_dense(), 2.5 * a.to_dense())
    assert (a + b).indices.tolist() == [0, 3, 5]


def test_dense_and_back():
    dense = torch.tensor([0.0, 1.5, 0.0, -2.0])
    sparse = SparseVector.from_dense(dense)
    assert sparse.indices.tolist() == [1, 3]
    assert len(sparse) == 2
    assert torch.equal(sparse.to_dense(), dense)


def test_an_empty_one_is_zero():
    empty = SparseVector(3, torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert torch.equal((empty + vector(3, {1: 4})).to_dense(), torch.tensor([0.0, 4.0, 0.0]))


def test_sorts_on_request():
    got = SparseVector.sorted(9, torch.tensor([7, 2]), torch.tensor([1.0, 2.0]))
    assert got.indices.tolist() == [2, 7]
    assert got.values.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("indices", "values", "error", "message"),
    [
        ([2, 1], [1.0, 1.0], ValueError, "sorted and distinct"),
        ([1, 1], [1.0, 1.0], ValueError, "sorted and distinct"),
        ([-1], [1.0], ValueError, r"\[0, 4\), got -1"),
        ([4], [1.0], ValueError, r"\[0, 4\), got 4"),
        ([1, 2], [1.0], ValueError, "equal length"),
    ],
)
def test_refuses_bad_indices(indices, values, error, message):
    with pytest.raises(error, match=message):
        SparseVector(4, torch.tensor(indices), torch.tensor(values))


def test_refuses_to_add_other_lengths():
    with pytest.raises(ValueError, match="length 3 and 4"):
        vector(3, {0: 1}) + vector(4, {0: 1})
