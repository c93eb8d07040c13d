"""Every kernel gives the bits of the reference. Triton's interpreter stands in for a GPU."""

import pytest
import torch
from awkward import awkward, normal

from fetchsgd.quantisers.kernels import kernels_for, reference
from fetchsgd.quantisers.level_layout import BITS

COUNTS = [1, 255, 256, 257, 1000]
KEY = 0x1234_5678_9ABC_DEF0
STREAMS = torch.tensor([0, 3, (1 << 62) + 5, 1 << 31, 7])


def bits_of(x):
    return x.view(torch.int32)


def test_philox_gives_the_published_words():
    # kat_vectors of Random123: counter, key, output.
    known = [
        ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            0xFFFFFFFF_FFFFFFFF,
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            0x299F31D0_A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for counter, key, expected in known:
        words = tuple(torch.tensor([int(word, 16)]) for word in counter.split())
        assert [f"{int(w):08x}" for w in reference.philox(words, key)] == expected.split()


def test_kernels_follow_the_device():
    assert kernels_for(torch.device("cpu")).__name__.endswith("cpu")
    assert kernels_for(torch.device("meta")) is reference


class TestKernelsEqualTheReference:
    @pytest.mark.parametrize("count", COUNTS)
    def test_quantise(self, ours, count):
        cells = normal(3, count)
        cells[1] *= 1e-3
        for bits in BITS:
            got = ours.quantise(cells, bits, KEY, STREAMS[:3])
            expected = reference.quantise(cells, bits, KEY, STREAMS[:3])
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])

    @pytest.mark.parametrize("bits", BITS)
    def test_quantise_awkward_cells(self, ours, bits):
        got = ours.quantise(awkward(), bits, 1, STREAMS[1:2])
        expected = reference.quantise(awkward(), bits, 1, STREAMS[1:2])
        assert torch.equal(bits_of(got[0]), bits_of(expected[0]))
        assert torch.equal(got[1], expected[1])

    @pytest.mark.parametrize("bits", BITS)
    def test_weighted_sum(self, ours, bits):
        for n, count in ((0, 10), (1, 257), (5, 3000)):
            scales, symbols = reference.quantise(normal(n, count), bits, KEY, STREAMS[:n])
            arguments = (scales, symbols, bits, count, normal(n, seed=1))
            got, expected = ours.weighted_sum(*arguments), reference.weighted_sum(*arguments)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(ours.weighted_sum(*arguments), got)

    # Triton's interpreter computes 0 * infinity with numpy, which warns.
    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
    @pytest.mark.parametrize("bits", BITS)
    def test_one_row_to_the_bit(self, ours, bits):
        scales, symbols = reference.quantise(awkward(), bits, KEY, STREAMS[:1])
        arguments = (scales, symbols, bits, awkward().shape[1], torch.ones(1))
        got, expected = ours.weighted_sum(*arguments), reference.weighted_sum(*arguments)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))

    @pytest.mark.parametrize(
        "shape", [(1, 64), (3, 4096), (2, 40_000 // 64 * 64), (0, 64)], ids=str
    )
    def test_histograms(self, ours, shape):
        generator = torch.Generator().manual_seed(0)
        symbols = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
        symbols[:, ::3] = 0
        symbols[:, 1::3] = 255
        got = ours.histograms(symbols)
        assert got.dtype == torch.int64
        assert got.shape == (shape[0], 256)
        for row, counts in zip(symbols, got, strict=True):
            assert torch.equal(counts, torch.bincount(row, minlength=256))
        assert torch.equal(reference.histograms(symbols), got)

    @pytest.mark.parametrize("count", COUNTS)
    def test_round_to_bfloat16(self, ours, count):
        cells = normal(2, count)
        got = ours.round_to_bfloat16(cells, KEY, STREAMS[1:3])
        assert torch.equal(got, reference.round_to_bfloat16(cells, KEY, STREAMS[1:3]))

    def test_round_awkward_cells_to_bfloat16(self, ours):
        got = ours.round_to_bfloat16(awkward(), KEY, STREAMS[:1])
        expected = reference.round_to_bfloat16(awkward(), KEY, STREAMS[:1])
        assert torch.equal(bits_of(got), bits_of(expected))

    def test_many_runs(self, ours):
        # Several programs a row, and with 5 rows more than are read at once.
        cells = normal(5, 5001)
        got = ours.quantise(cells, 4, KEY, STREAMS)
        expected = reference.quantise(cells, 4, KEY, STREAMS)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
