"""What `--budget` chooses keeps real messages below the budget, and does not waste it."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.quantisers.levels import Rounding, quantise
from fetchsgd.runs.budget import WIDEST, choose, parse_budget
from fetchsgd.wire import (
    DenseVector,
    Floats,
    SketchTable,
    SparseUpdate,
    encode,
)

DIM = 400_000


def content(count, bits, heavy):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(count))
    if heavy:
        numbers = numbers**3
    if bits >= 16:
        return Floats(numbers.to(torch.bfloat16 if bits == 16 else torch.float32))
    return quantise(numbers, bits, Rounding(1))


def message(method, chosen, heavy):
    bits = chosen["upload"]["bits"]
    if method == "fetchsgd":
        cols = chosen["method"]["cols"]
        return encode(SketchTable(DIM, 1, cols, 1, 0, content(cols, bits, heavy)))
    if method == "local_topk":
        k = chosen["method"]["k"]
        places = torch.randperm(DIM, generator=torch.Generator().manual_seed(0))[:k]
        return encode(SparseUpdate(DIM, places.sort().values, content(k, bits, heavy)))
    return encode(DenseVector(content(DIM, bits, heavy)))


@pytest.mark.parametrize("times", [1, 2, 5, 10, 25, 100, 300, 900])
@pytest.mark.parametrize("method", ["fetchsgd", "local_topk", "true_topk"])
def test_real_messages_stay_below_the_budget(method, times):
    bytes = parse_budget(f"{times}x", DIM)
    if method == "true_topk" and times > 25:
        with pytest.raises(UserError, match="true_topk sends all 400000 weights, at best 27x"):
            choose(method, DIM, bytes)
        return
    if times == 1:
        bytes += 1000  # float32 as it is, and a header
    chosen = choose(method, DIM, bytes)
    assert len(message(method, chosen, heavy=True)) <= bytes
    normal = len(message(method, chosen, heavy=False))
    assert normal <= bytes
    if method == "local_topk" and chosen["method"]["k"] < DIM:
        assert normal >= 0.6 * bytes
    if method == "fetchsgd" and chosen["method"]["cols"] < WIDEST * DIM - 1:
        assert chosen["upload"]["bits"] == 2
        assert normal >= 0.7 * bytes


def test_a_wide_table_first_and_bits_with_what_is_left():
    assert choose("fetchsgd", DIM, 10**5)["method"]["cols"] == DIM // 2
    assert choose("fetchsgd", DIM, 10**5)["upload"]["bits"] == 4
    assert choose("fetchsgd", DIM, 10**4)["upload"]["bits"] == 2
    assert choose("fetchsgd", DIM, 10**4, rows=5)["method"]["cols"] == (
        choose("fetchsgd", DIM, 10**4)["method"]["cols"] // 5
    )


@pytest.mark.parametrize(
    ("text", "bytes"), [("100x", 16_000), ("250kB", 250_000), ("1.5 MB", 1_500_000), ("999", 999)]
)
def test_budgets_are_compressions_or_bytes(text, bytes):
    assert parse_budget(text, DIM) == bytes


@pytest.mark.parametrize("text", ["", "x", "fast", "-3x", "0", "10 tons", "inf"])
def test_what_is_no_budget(text):
    with pytest.raises(UserError, match="such as 100x, or bytes such as 250kB"):
        parse_budget(text, DIM)


@pytest.mark.parametrize("method", ["fetchsgd", "local_topk", "uncompressed"])
def test_a_budget_too_small_for_anything(method):
    with pytest.raises(UserError, match="--budget of 100 bytes"):
        choose(method, DIM, 100)
