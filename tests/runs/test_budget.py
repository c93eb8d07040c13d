"""What `--budget` chooses keeps real messages below the budget, and does not waste it."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.quantisers import QUANTISERS, SharedStep
from fetchsgd.runs.budget import choose, parse_budget
from fetchsgd.runs.fitting import CELL_BITS, WIDEST, largest, level_options
from fetchsgd.runs.settings import resolve
from fetchsgd.wire import DenseVector, SketchTable, SparseUpdate, encode
from fetchsgd.wire.sizes import HEADER_BYTES

DIM = 400_000
SHARED = {"quantiser": "shared_step"}
FEW = {"quantiser": "step"}  # a sketch of few levels


def chosen(method, bytes, upload=None, own=None, **options):
    """Of a method with these settings, of which the user has set those of `upload` and `own`."""
    size = {"fetchsgd": {"cols": 1, "k": 1}, "local_topk": {"k": 1}, "true_topk": {"k": 1}}
    local = {"epochs": 1} if method in ("fedavg", "sparse_loco") else {}
    config = resolve(
        {
            "task": {"name": "tinytask:tiny"},
            "method": {"name": method, **size.get(method, {}), **options},
            "upload": upload or {},
            "local": local,
        }
    )
    return choose(config, {"upload": upload or {}, "method": options, **(own or {})}, DIM, bytes)


def content(count, upload, heavy):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(count))
    if heavy:
        numbers = numbers**5
    options = {name: value for name, value in upload.items() if name != "quantiser"}
    quantiser = QUANTISERS[upload.get("quantiser", "bits")](**options)
    return quantiser.round_rows(numbers[None], 1, torch.tensor([7])).row(0)


def message(method, upload, sizes, heavy):
    if method == "fetchsgd":
        cols = sizes["cols"]
        return encode(SketchTable(DIM, 1, cols, 1, 0, content(cols, upload, heavy)))
    if method in ("local_topk", "sparse_loco"):
        k = sizes["k"] if method == "local_topk" else DIM * sizes["per_chunk"] // 4096
        places = torch.randperm(DIM, generator=torch.Generator().manual_seed(0))[:k]
        return encode(SparseUpdate(DIM, places.sort().values, content(k, upload, heavy)))
    return encode(DenseVector(content(DIM, upload, heavy)))


WAYS = {
    "whole gradients": ("uncompressed", {}),
    "true top-k": ("true_topk", {}),
    "one step for all": ("uncompressed", SHARED),
    "a sketch": ("fetchsgd", {}),
    "a sketch in 16 bits": ("fetchsgd", {"bits": 16}),
    "a sketch of few levels": ("fetchsgd", FEW),
    "chosen coordinates": ("local_topk", {}),
    "chosen in 32 bits": ("local_topk", {"bits": 32}),
    "chosen of each chunk": ("sparse_loco", {}),
}


@pytest.mark.parametrize("times", [1, 2, 5, 25, 100, 900, 3000])
@pytest.mark.parametrize(("method", "own"), WAYS.values(), ids=WAYS)
def test_real_messages_stay_below_the_budget_and_use_it(method, own, times):
    bytes = parse_budget(f"{times}x", DIM)
    found = chosen(method, bytes, own)
    upload, sizes = {**own, **found.get("upload", {})}, found.get("method", {})
    lengths = [len(message(method, upload, sizes, heavy)) for heavy in (False, True)]
    assert max(lengths) <= bytes
    if method in ("local_topk", "sparse_loco"):
        whole = {"local_topk": DIM, "sparse_loco": 4096}[method]
        assert max(sizes.values()) == whole or lengths[0] >= 0.5 * bytes or times > 900
    elif method == "fetchsgd" and own != FEW:
        assert min(lengths) >= bytes - 4 or sizes["cols"] == DIM
    elif times >= 25 and own != SHARED:
        assert min(lengths) >= 0.9 * bytes - 50


@pytest.mark.parametrize("method", ["true_topk", "uncompressed"])
def test_floats_where_they_fit(method):
    bytes = 4 * DIM + HEADER_BYTES
    assert chosen(method, bytes) == {"upload": {"bits": 32}}
    assert len(message(method, {"bits": 32}, {}, heavy=True)) == bytes
    assert chosen(method, bytes - 1)["upload"]["quantiser"] == "step"


def test_a_sketch_keeps_its_numbers_and_is_as_wide_as_fits():
    assert chosen("fetchsgd", 4 * DIM // 20) == {"method": {"cols": DIM // 20 - HEADER_BYTES // 4}}
    assert chosen("fetchsgd", 4064, rows=5) == {"method": {"cols": 200}}
    assert chosen("fetchsgd", 100 * DIM) == {"method": {"cols": DIM}}  # more says no more


def test_a_table_of_few_levels_is_wide_as_long_as_cells_have_bits():
    wide, narrow = (chosen("fetchsgd", size, FEW)["method"]["cols"] for size in (10**4, 5000))
    assert wide == WIDEST * DIM
    assert narrow < wide
    assert CELL_BITS * narrow == pytest.approx(8 * 5000, rel=0.1)
    assert chosen("fetchsgd", 5000, FEW, rows=5)["method"]["cols"] == narrow // 5


def test_more_bytes_never_choose_coarser_steps():
    taus = [chosen("true_topk", 1000 * 2**i)["upload"]["tau"] for i in range(10)]
    assert taus == sorted(taus, reverse=True)
    assert taus[0] > taus[-1]
    sizes = [level_options(SharedStep(), DIM, 1000 * 2**i)["density"] for i in range(14)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


MODULAR = {"sum": "modular"}


def test_sums_of_whole_gradients_take_as_many_bits_as_fit():
    assert chosen("uncompressed", DIM * 9 // 8, MODULAR) == {"upload": {"sum_bits": 8}}
    assert chosen("true_topk", 8 * DIM, MODULAR) == {"upload": {"sum_bits": 16}}
    assert chosen("uncompressed", 2 * DIM, {**MODULAR, "sum_bits": 6}) == {}
    with pytest.raises(UserError, match="a sum has 400,000 cells of 4 bits, and that takes"):
        chosen("uncompressed", DIM // 4, MODULAR)
    with pytest.raises(UserError, match="cells of 6 bits"):
        chosen("uncompressed", DIM // 2, {**MODULAR, "sum_bits": 6})


def test_sums_of_sketches_take_the_bits_that_they_have():
    eight = chosen("fetchsgd", 40_000, MODULAR)["method"]["cols"]
    six = chosen("fetchsgd", 40_000, {**MODULAR, "sum_bits": 6})["method"]["cols"]
    assert 0.95 * 40_000 <= eight <= 40_000
    assert 0.95 * 40_000 <= six * 6 / 8 <= 40_000
    secure = {**MODULAR, "secure": True}
    plain, hidden = (chosen("fetchsgd", 5000, own)["method"]["cols"] for own in (MODULAR, secure))
    assert plain - 1500 < hidden < plain - 750  # keys and shares
    assert chosen("fetchsgd", 40_000, MODULAR, cols=20_000) == {"upload": {"sum_bits": 15}}
    with pytest.raises(UserError, match="8 bits with its keys and shares in each row"):
        chosen("fetchsgd", 900, secure)


def test_messages_that_do_not_add_up_are_refused_as_without_a_budget():
    for method in ("local_topk", "sparse_loco"):
        with pytest.raises(UserError, match=f"those of {method} do not: each client chooses"):
            chosen(method, 4000, MODULAR)


def test_what_the_user_has_set_stays_or_is_refused():
    assert chosen("uncompressed", 4000, {"quantiser": "shared_step", "density": 0.01}) == {
        "upload": {"bytes": 4000}
    }
    assert chosen("fetchsgd", 4000, {**FEW, "tau": 8.0}, cols=900) == {"upload": {"bytes": 4000}}
    assert chosen("uncompressed", 60_000, {"quantiser": "eden"}) == {}
    assert chosen("uncompressed", 2 * DIM, {"bits": 8}) == {}
    for method, upload, options in (
        ("fetchsgd", {}, {"cols": 100}),
        ("local_topk", {}, {"k": 100}),
        ("sparse_loco", {}, {"per_chunk": 2}),
        ("uncompressed", {**FEW, "bytes": 900}, {}),
    ):
        key = next(iter(options), "bytes")
        with pytest.raises(UserError, match=rf"--budget chooses \w+\.{key}: leave one of the two"):
            chosen(method, 4000, upload, **options)
    with pytest.raises(UserError, match=r"sends 400,000 numbers by upload.bits = 8, and that"):
        chosen("uncompressed", DIM, {"bits": 8})


def test_a_method_with_a_message_of_its_own_fits_or_is_refused():
    assert chosen("outside.random_k:RandomK", 4000, k=100) == {}
    with pytest.raises(UserError, match="RandomK sends 1,000 numbers, and that takes 4,064 bytes"):
        chosen("outside.random_k:RandomK", 4000, k=1000)


@pytest.mark.parametrize(
    ("text", "bytes"), [("100x", 16_000), ("250kB", 250_000), ("1.5 MB", 1_500_000), ("999", 999)]
)
def test_budgets_are_compressions_or_bytes(text, bytes):
    assert parse_budget(text, DIM) == bytes


@pytest.mark.parametrize("text", ["", "x", "fast", "-3x", "0", "10 tons", "inf"])
def test_what_is_no_budget(text):
    with pytest.raises(UserError, match="such as 100x, or bytes such as 250kB"):
        parse_budget(text, DIM)


@pytest.mark.parametrize(
    ("method", "upload", "bytes"),
    [
        ("fetchsgd", {}, 66),
        ("fetchsgd", FEW, 100),
        ("local_topk", {}, 100),
        ("uncompressed", {}, 100),
    ],
)
def test_a_budget_too_small_for_anything(method, upload, bytes):
    with pytest.raises(UserError, match=f"--budget of {bytes} bytes"):
        chosen(method, bytes, upload)


def test_the_largest_that_fits():
    assert [largest(lambda n: n * n, limit, most=10) for limit in (0, 1, 80, 81, 1000)] == [
        0, 1, 8, 9, 10,
    ]  # fmt: skip
