"""What `--budget` chooses keeps real messages below the budget, and does not waste it."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.quantisers import QUANTISERS
from fetchsgd.runs.budget import CELL_BITS, WIDEST, choose, parse_budget
from fetchsgd.wire import DenseVector, SketchTable, SparseUpdate, encode
from fetchsgd.wire.sizes import HEADER_BYTES

DIM = 400_000


def content(count, upload, heavy):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(count))
    if heavy:
        numbers = numbers**5
    options = {name: value for name, value in upload.items() if name != "quantiser"}
    quantiser = QUANTISERS[upload.get("quantiser", "bits")](**options)
    return quantiser.round_rows(numbers[None], 1, torch.tensor([7])).row(0)


def message(method, chosen, heavy):
    upload = chosen["upload"]
    if method == "fetchsgd":
        cols = chosen["method"]["cols"]
        return encode(SketchTable(DIM, 1, cols, 1, 0, content(cols, upload, heavy)))
    if method == "local_topk":
        k = chosen["method"]["k"]
        places = torch.randperm(DIM, generator=torch.Generator().manual_seed(0))[:k]
        return encode(SparseUpdate(DIM, places.sort().values, content(k, upload, heavy)))
    return encode(DenseVector(content(DIM, upload, heavy)))


@pytest.mark.parametrize("times", [1, 2, 5, 10, 25, 100, 300, 900, 3000])
@pytest.mark.parametrize("method", ["fetchsgd", "local_topk", "true_topk", "uncompressed"])
def test_real_messages_stay_below_the_budget_and_use_it(method, times):
    bytes = parse_budget(f"{times}x", DIM)
    chosen = choose(method, DIM, bytes)
    sizes = [len(message(method, chosen, heavy)) for heavy in (False, True)]
    assert max(sizes) <= bytes
    if method == "local_topk":
        if chosen["method"]["k"] < DIM:
            assert sizes[0] >= 0.6 * bytes or times > 900
    elif times >= 25:
        assert min(sizes) >= 0.9 * bytes - 50


@pytest.mark.parametrize("method", ["true_topk", "fetchsgd"])
def test_floats_where_they_fit(method):
    bytes = 4 * DIM + HEADER_BYTES
    assert choose(method, DIM, bytes)["upload"] == {"bits": 32}
    assert len(message("true_topk", choose("true_topk", DIM, bytes), heavy=True)) == bytes
    assert choose("true_topk", DIM, bytes - 1)["upload"]["quantiser"] == "step"


def test_a_wide_table_as_long_as_cells_have_bits():
    wide, narrow = (choose("fetchsgd", DIM, bytes)["method"]["cols"] for bytes in (10**4, 5000))
    assert wide == WIDEST * DIM
    assert narrow < wide
    assert CELL_BITS * narrow == pytest.approx(8 * 5000, rel=0.1)
    assert choose("fetchsgd", DIM, 5000, rows=5)["method"]["cols"] == narrow // 5


def test_more_bytes_never_choose_coarser_steps():
    taus = [choose("true_topk", DIM, 1000 * 2**i)["upload"]["tau"] for i in range(10)]
    assert taus == sorted(taus, reverse=True)
    assert taus[0] > taus[-1]


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
