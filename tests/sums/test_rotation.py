"""The rotation: every kernel gives the bits of the reference, and it is a rotation."""

import pytest
import torch

from fetchsgd.sums.kernels import reference
from fetchsgd.sums.layout import LEAST_BLOCK, Layout
from fetchsgd.sums.rotation import STREAM, rotate, rotate_back, signs_of

CPU = torch.device("cpu")
KEY = 0x1234_5678_9ABC_DEF0
COUNTS = [1, 2, 3, 31, 300, 1000, 2049, 8000, 70_001]
# Triton's interpreter takes seconds for many rows.
SOME = [1, 40, 300, 8000]

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)


def numbers(n, count, seed=0):
    return torch.randn(n, count, generator=torch.Generator().manual_seed(seed)) ** 3


def same_bits(a, b):
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def _programs(monkeypatch, **constants):
    """The kernels for a GPU, with some of their constants changed."""
    pytest.importorskip("triton")
    from fetchsgd.sums.kernels import cuda

    for name, value in constants.items():
        monkeypatch.setattr(cuda, name, value)
    return cuda


class TestLayout:
    @pytest.mark.parametrize("count", [1, 2, 5, 255, 257, 5000, 85_066, 650_000, 6_568_640])
    def test_blocks_hold_all_numbers_and_little_else(self, count):
        layout = Layout.of(count)
        assert layout.cells >= count
        assert layout.block & layout.block - 1 == 0
        if layout.block > LEAST_BLOCK:
            assert layout.cells <= count * 33 / 32 or layout.blocks == 1
        assert layout.blocks == 1 or layout.block >= LEAST_BLOCK

    def test_nothing(self):
        assert Layout.of(0).cells == 0


class TestKernelsEqualTheReference:
    @pytest.mark.parametrize("count", COUNTS)
    def test_numba(self, count):
        from fetchsgd.sums.kernels import cpu

        self.check(cpu, count, CPU)

    @interpreted
    @pytest.mark.parametrize("count", SOME)
    def test_interpreted(self, count, monkeypatch):
        self.check(_programs(monkeypatch), count, CPU)

    @pytest.mark.gpu
    @pytest.mark.parametrize("count", COUNTS)
    def test_on_a_gpu(self, count, monkeypatch):
        self.check(_programs(monkeypatch), count, torch.device("cuda"))

    @pytest.mark.gpu
    @pytest.mark.parametrize("count", COUNTS)
    def test_the_reference_on_a_gpu(self, count):
        self.check(reference, count, torch.device("cuda"))

    @interpreted
    @pytest.mark.parametrize("spare", [0, 2, 100])
    def test_chunks_that_follow_each_other_in_one_scratch(self, spare, monkeypatch):
        cuda = _programs(monkeypatch, LANES=2, SPARE=spare)
        self.check_layout(cuda, Layout(30, 4, 8), CPU)

    @interpreted
    @pytest.mark.parametrize("lanes", [4, 32, 64])
    def test_rows_that_begin_at_any_bit_of_a_word(self, lanes, monkeypatch):
        self.check_layout(_programs(monkeypatch, LANES=lanes), Layout(1100, 16, 71), CPU)

    @pytest.mark.gpu
    @pytest.mark.parametrize(("lanes", "spare"), [(32, 0), (64, 0), (128, 3), (256, 100)])
    def test_chunks_on_a_gpu(self, lanes, spare, monkeypatch):
        cuda = _programs(monkeypatch, LANES=lanes, SPARE=spare)
        layout, rows = Layout.of(6_500_001), numbers(2, 6_500_001).cuda()
        signs = signs_of(layout, KEY, rows.device)
        there = reference.rotate(rows, signs, layout)
        back = reference.rotate_back(there, signs, layout)
        for _ in range(20):  # programs meet in another order each time
            assert same_bits(cuda.rotate(rows, signs, layout), there)
            assert same_bits(cuda.rotate_back(there, signs, layout), back)

    def check(self, kernels, count, device):
        self.check_layout(kernels, Layout.of(count), device)

    @staticmethod
    def check_layout(kernels, layout, device):
        rows = numbers(2, layout.count)
        signs = signs_of(layout, KEY, CPU)
        words = kernels.words(STREAM, layout.words, KEY, device)
        assert torch.equal(words.cpu(), reference.words(STREAM, layout.words, KEY, CPU))
        there = reference.rotate(rows, signs, layout)
        got = kernels.rotate(rows.to(device), signs.to(device), layout)
        assert same_bits(got.cpu(), there)
        back = kernels.rotate_back(there.to(device), signs.to(device), layout)
        assert same_bits(back.cpu(), reference.rotate_back(there, signs, layout))


class TestRotation:
    @pytest.mark.parametrize("count", COUNTS)
    def test_there_and_back_keeps_numbers_and_lengths(self, count):
        layout, rows = Layout.of(count), numbers(2, count)
        signs = signs_of(layout, KEY, CPU)
        cells = rotate(rows, signs)
        torch.testing.assert_close(cells.norm(dim=1), rows.norm(dim=1), rtol=1e-5, atol=0)
        torch.testing.assert_close(rotate_back(cells, signs, layout), rows, rtol=1e-4, atol=1e-4)

    def test_against_a_matrix(self):
        """Signs times Sylvester's matrix, in float64, for each column of the layout."""
        layout = Layout.of(1000)
        rows = numbers(1, 1000)
        signs = signs_of(layout, KEY, CPU)
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < layout.block:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
        bits = [int(signs[t // 32]) >> t % 32 & 1 for t in range(layout.cells)]
        filled = torch.zeros(layout.cells, dtype=torch.float64)
        filled[:1000] = rows[0].double()
        flipped = filled * torch.tensor([1.0 - 2.0 * bit for bit in bits])
        expected = matrix @ flipped.view(layout.block, layout.blocks) / layout.block**0.5
        torch.testing.assert_close(
            rotate(rows, signs)[0].double(), expected.flatten(), rtol=0, atol=1e-5
        )

    def test_one_large_number_is_spread_over_its_block(self):
        rows = torch.zeros(1, 8192)
        rows[0, 5] = 64.0
        cells = rotate(rows, signs_of(Layout.of(8192), KEY, CPU))
        assert cells.abs().max() == 1.0
        assert cells.count_nonzero() == 4096

    def test_signs_are_fair_and_follow_from_the_key(self):
        layout = Layout.of(1 << 20)
        signs = signs_of(layout, KEY, CPU)
        ones = sum(int((signs >> bit & 1).sum()) for bit in range(32))
        # Six standard deviations: a fair coin fails once in 5e8.
        assert abs(ones - (1 << 19)) < 6 * 512
        assert not torch.equal(signs, signs_of(layout, KEY + 1, CPU))
