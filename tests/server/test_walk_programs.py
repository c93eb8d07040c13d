"""The programs of the walk, in Triton's interpreter or on a GPU."""

import pytest
import torch
from wire.buckets import integers, on_the_page

pytest.importorskip("triton")

import triton
import triton.language as tl

from fetchsgd.launch import launch
from fetchsgd.server.downloads.walk_programs import bucket

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def buckets(out, values, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    symbols = bucket(tl.load(values + at, mask=at < count, other=0))
    tl.store(out + at, symbols, mask=at < count)


def test_bucket_symbols_are_those_of_the_page():
    """Also above 2^24, where a float would round, and up to the last of 32 bits."""
    values = integers(32)
    given = torch.tensor(values, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(given)
    launch(buckets, (-(-len(values) // 256),), out, given, len(values), SPAN=256)
    assert out.tolist() == [on_the_page(value) for value in values]
