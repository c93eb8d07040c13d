"""The programs of the walk, in Triton's interpreter or on a GPU."""

import pytest
import torch
from wire.buckets import integers, on_the_page

pytest.importorskip("triton")

import triton
import triton.language as tl

from fetchsgd.launch import launch
from fetchsgd.wire.chunk_programs import bucket

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]


@triton.jit
def buckets(out, values, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    symbols = bucket(tl.load(values + at, mask=at < count, other=0))
    tl.store(out + at, symbols, mask=at < count)


@pytest.mark.parametrize("device", DEVICES)
def test_bucket_symbols_are_those_of_the_page(device):
    """Also above 2^24, where a float would round, and up to the last of 32 bits."""
    values = integers(32)
    given = torch.tensor(values, dtype=torch.int32, device=device)
    out = torch.empty_like(given)
    launch(buckets, (-(-len(values) // 256),), out, given, len(values), SPAN=256)
    assert out.tolist() == [on_the_page(value) for value in values]
