"""The programs for a GPU choose what the plain version chooses. Triton's interpreter runs them."""

import math

import pytest
import torch
from waiting import nothing_waits

pytest.importorskip("triton")

from fetchsgd.methods import largest, largest_cuda

FIRST_NAN = largest.FIRST_NAN
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(largest_cuda, "SPAN", 64)
    monkeypatch.setattr(largest_cuda, "SPANS", 2)


@pytest.fixture
def plain(monkeypatch):
    """largest.py without the programs."""

    def call(name, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(largest, "_suits_programs", lambda _: False)
            return getattr(largest, name)(*arguments)

    return call


def awkward_rows(dim, generator):
    """Rows of every kind, and one in which what a sample of eight sees is unlike all the rest."""
    bits = torch.randint(-(1 << 31), 1 << 31, (4, dim), generator=generator).int()
    bits[1] = bits[1] % 50  # denormals, with ties
    bits[2] = bits[2] | FIRST_NAN  # NaN of all kinds
    bits[3] = bits[3] % 3 + FIRST_NAN - 1  # infinity, and two kinds of NaN
    normal = torch.randn(3, dim, generator=generator)
    normal[1, :: -(-dim // 8) | 1] *= 1e-20
    normal[2, ::5], normal[2, ::7] = math.nan, -math.inf
    whole = torch.randint(-2, 3, (1, dim), generator=generator).float()
    same = torch.tensor([0.0, -0.5, math.inf]).repeat_interleave(dim).view(3, dim)
    single = torch.zeros(1, dim)
    single[0, dim // 2] = -3.0
    return torch.cat([bits.view(torch.float32), normal, whole, same, single])


def assert_agree(plain, vectors, k):
    """The masks of all rows, and the sums of those that do not make a sum NaN."""
    expected = plain("largest_mask", vectors, k)
    found = largest_cuda.largest_mask(vectors, k)
    assert found.dtype == torch.bool
    assert torch.equal(found, expected)
    finite = vectors.isfinite().all(dim=1)
    left = torch.where(expected, vectors, 0)[finite]
    shares = torch.linspace(0.5, 2.0, len(left), device=vectors.device)
    total, nonzero = largest_cuda.largest_sum(vectors[finite], shares, k)
    assert (nonzero.dtype, nonzero.shape) == (torch.int64, ())
    assert int(nonzero) == int(left.count_nonzero())
    exact, size = (shares.double() @ rows.double() for rows in (left, left.abs()))
    assert ((total - exact).abs() <= 1e-5 * size + 1e-40).all()


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("samples", "k"), [(4096, 1), (4096, 70), (4096, 200), (8, 1), (8, 70), (8, 199)]
)
def test_rows_of_every_kind(samples, k, plain, generator, monkeypatch):
    monkeypatch.setattr(largest_cuda, "SAMPLES", samples)
    assert_agree(plain, awkward_rows(200, generator), k)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dim", [1, 2, 63, 64, 65, 128, 129])
def test_one_row_of_any_length(dim, plain, generator):
    for vectors in (
        torch.randn(1, dim, generator=generator),
        torch.randint(-1, 2, (1, dim), generator=generator).float(),
    ):
        assert_agree(plain, vectors, -(-dim // 2))


@interpreted
def test_sizes_as_they_are_on_a_gpu(plain, generator):
    vectors = torch.randn(2, 20_001, generator=generator)
    vectors[1] = (vectors[1] * 3).round()
    assert_agree(plain, vectors, 3000)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_sums_of_what_is_not_finite():
    inf, nan = math.inf, math.nan
    vectors = torch.tensor([[nan, inf, 1, -inf, 5, 0], [2, -inf, inf, -inf, 0, 3]])
    total, nonzero = largest_cuda.largest_sum(vectors, torch.tensor([1.0, 2.0]), 3)
    expected = torch.tensor([nan, nan, inf, -inf, 0, 0])
    torch.testing.assert_close(total, expected, rtol=0, atol=0, equal_nan=True)
    assert int(nonzero) == 6


def without_waiting(function, *arguments):
    with nothing_waits():
        return function(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 100, 10_000, 300_000, 900_000, 1_000_002, 1_000_003])
@pytest.mark.parametrize("dim", [1_000_003, 1_000_016])
def test_gpu_agrees_and_repeats_itself(dim, k, plain):
    vectors = torch.randn(100, dim, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    vectors[1] = (vectors[1] * 9).round()
    vectors[2], vectors[3], vectors[4, ::3], vectors[5, 7:] = 0.0, -0.5, math.nan, 0.0
    vectors[6:18] = awkward_rows(dim, torch.Generator().manual_seed(0)).cuda()
    assert_agree(plain, vectors, k)
    shares = torch.rand(100, device="cuda")
    first, second = (without_waiting(largest.largest_sum, vectors, shares, k) for _ in range(2))
    assert torch.equal(first[0].view(torch.int32), second[0].view(torch.int32))
    assert int(first[1]) == int(second[1])
    masks = [without_waiting(largest.largest_mask, vectors, k) for _ in range(2)]
    assert torch.equal(*masks)


@pytest.mark.gpu
def test_gpu_beyond_two_to_the_31_elements(plain):
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of a GPU")
    vectors = torch.randint(-99, 100, (2200, 1_000_003), device="cuda", dtype=torch.float32)
    mask = largest.largest_mask(vectors, 20_000)
    assert torch.equal(mask[-3:], plain("largest_mask", vectors[-3:], 20_000))
    shares = torch.zeros(2200, device="cuda")
    shares[-1] = 1
    total, _ = largest.largest_sum(vectors, shares, 20_000)
    assert torch.equal(total, torch.where(mask[-1], vectors[-1], 0))
