"""Top k of one row from its cells: the bits of the reference, on a CPU and in Triton's interpreter.

`make test-gpu` runs the compiled programs here instead.
"""

import pytest
import torch

from fetchsgd.sketch.kernels.permuted import one_row
from fetchsgd.sketch.kernels.permuted.cpu import PermutedNumba
from fetchsgd.sketch.kernels.permuted.reference import PermutedReference
from fetchsgd.sketch.permutation import Permutation, locate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# dim, cols, block: cut blocks and groups, cells that are not used, a cell for each, one column, two
# groups, and more of both cells and coordinates than a program has
SHAPES = [
    (400, 90, 4),
    (433, 103, 4),
    (700, 150, 64),
    (200, 37, 1),
    (99, 100, 4),
    (50, 100, 64),
    (60, 9, 8),
    (20, 1, 1),
    (601, 600, 8),
    (1500, 700, 16),
    (1, 1, 1),
]
# How large numbers in cells are: all tie, many do, few do.
LEVELS = [1, 3, 1000]


def triton(hash):
    pytest.importorskip("triton")
    from fetchsgd.sketch.kernels.permuted.cuda import PermutedTriton

    return PermutedTriton(hash, DEVICE)


ON_GPU = [pytest.mark.gpu] if torch.cuda.is_available() else []


@pytest.fixture(params=[PermutedNumba, pytest.param(triton, marks=ON_GPU)], ids=["numba", "triton"])
def kind(request):
    return request.param


@pytest.fixture
def always_listed(monkeypatch):
    monkeypatch.setattr(one_row, "LISTED", 1)


def device_of(kernels):
    return getattr(kernels, "device", torch.device("cpu"))


def random_table(kernels, levels):
    generator = torch.Generator().manual_seed(0)
    cols = kernels.hash.cols
    table = torch.randint(int(levels == 1), levels + 1, (1, cols), generator=generator)
    signs = torch.randint(0, 2, (1, cols), generator=generator) * 2 - 1
    return (table * signs).float().to(device_of(kernels))


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("always_listed")
class TestLaws:
    def test_top_k_is_that_of_the_reference(self, kind, shape, levels):
        dim, cols, block = shape
        ours = kind(Permutation(dim, 1, cols, block, seed=7))
        reference = PermutedReference(ours.hash, device_of(ours))
        table = random_table(ours, levels)
        for k in {0, 1, dim // 3, dim - 1, dim, min(ours.hash.groups + 1, dim)}:
            assert same(ours.top_k(table, k), reference.top_k(table, k)), k

    def test_and_all_above_a_threshold(self, kind, shape, levels):
        dim, cols, block = shape
        ours = kind(Permutation(dim, 1, cols, block, seed=8))
        reference = PermutedReference(ours.hash, device_of(ours))
        table = random_table(ours, levels)
        for threshold in (0.5, 2.0):
            expected = reference.at_least(table, threshold)
            assert same(ours.at_least(table, threshold), expected)

    @pytest.mark.parametrize("longest", [0, one_row.SORTED_CELLS], ids=["selected", "sorted"])
    def test_the_threshold_is_that_of_all_estimates(
        self, kind, shape, levels, longest, monkeypatch
    ):
        monkeypatch.setattr(one_row, "SORTED_CELLS", longest)
        dim, cols, block = shape
        ours = kind(Permutation(dim, 1, cols, block, seed=0))
        table = random_table(ours, levels)
        estimates = PermutedReference(ours.hash, device_of(ours)).estimate(table)
        ordered = estimates.abs().sort(descending=True).values
        row = one_row.held(ours.hash, table)
        for k in {-(-dim // 2), dim}:
            assert torch.equal(one_row.kth_largest(ours, row, k), ordered[k - 1 : k])


@pytest.mark.usefixtures("always_listed")
def test_zeros_tie_too(kind):
    ours = kind(Permutation(433, 1, 103, 4, seed=7))
    reference = PermutedReference(ours.hash, device_of(ours))
    table = random_table(ours, 1) * 0.0
    for k in (1, 150, 433):
        assert same(ours.top_k(table, k), reference.top_k(table, k))


def test_large_shares_and_several_rows_are_left_to_walks(kind):
    one, three = (kind(Permutation(1280, rows, 40, 8, seed=1)) for rows in (1, 3))
    assert one_row.top_k(one, random_table(one, 9), 0) is None
    assert one_row.top_k(one, random_table(one, 9), 10) is not None
    assert one_row.top_k(one, random_table(one, 9), 11) is None
    assert one_row.at_least(one, random_table(one, 9), 1.0) is None
    table = random_table(three, 9).repeat(3, 1)
    assert one_row.top_k(three, table, 10) is None
    assert one_row.at_least(three, table, 9.0) is None


@pytest.mark.parametrize("variant", [0, 2])
@pytest.mark.usefixtures("always_listed")
def test_other_rows_have_hashes_of_their_own(kind, variant):
    ours = kind(Permutation(433, 3, 103, 4, seed=5).without_signs(variant))
    reference = PermutedReference(ours.hash, device_of(ours))
    table = random_table(ours, 3)
    assert same(ours.top_k(table, 100), reference.top_k(table, 100))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.usefixtures("always_listed")
def test_what_is_not_finite_gives_coordinates_that_exist(kind, bad):
    ours = kind(Permutation(433, 1, 103, 4, seed=5))
    table = random_table(ours, 3)
    table[0, 5:9] = bad
    for k in (1, 20, 200):
        indices, values = ours.top_k(table, k)
        assert len(indices) == len(values) == k
        assert ((indices >= 0) & (indices < 433)).all()


@pytest.fixture
def beyond(kind, monkeypatch):
    """More coordinates than 33 bits can count; programs of many entries, for the interpreter."""
    if kind is triton and DEVICE.type == "cpu":
        from fetchsgd.sketch.kernels.permuted import cuda, cuda_one_row

        monkeypatch.setattr(cuda, "ENTRIES", 1 << 15)
        monkeypatch.setattr(cuda_one_row, "SPAN", 1 << 15)
    return kind(Permutation(2**33 + 12_345, 1, 1 << 16, 16, seed=3))


@pytest.mark.parametrize("equal", [1, 3])
def test_coordinates_beyond_32_bits(beyond, equal):
    """One of each group and of each of the equal cells, in order of group."""
    table = random_table(beyond, 1000)
    peaks = torch.arange(17, 17 + equal, device=table.device)
    table[0, peaks] = -5000.0
    k = beyond.hash.groups - 2  # of three equal cells not all coordinates of the last group
    indices, values = beyond.top_k(table, k)
    cells, signs = locate(beyond.hash, indices, 0)
    assert torch.isin(cells, peaks).all()
    assert torch.equal(values, -5000.0 * signs)
    assert (indices.diff() > 0).all()
    assert torch.equal(indices >> 16, torch.arange(k, device=table.device) // equal)


def test_a_cell_has_a_coordinate_in_every_group_beyond_32_bits(beyond):
    table = torch.zeros(1, beyond.hash.cols, device=device_of(beyond))
    table[0, 77] = 1.0
    indices, _ = beyond.at_least(table, 1.0)
    assert (locate(beyond.hash, indices, 0)[0] == 77).all()
    assert torch.equal(indices >> 16, torch.arange(len(indices), device=table.device))
    assert len(indices) == int(beyond.loads(torch.tensor([77], device=table.device)))
    assert len(indices) >= beyond.hash.groups - 1
