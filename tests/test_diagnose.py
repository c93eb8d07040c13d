"""Diagnostics against their definitions, by brute force, and that looking on changes nothing."""

import math
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close
from waiting import nothing_waits

from fetchsgd.diagnose import Diagnosed
from fetchsgd.diagnose.cells import Cells
from fetchsgd.diagnose.sliding import SlidingSums
from fetchsgd.diagnose.spaces import Sketched
from fetchsgd.methods import FetchSGD, TrueTopK, Upload
from fetchsgd.methods.decoding import Prior
from fetchsgd.methods.delivery import IDENTITY, Delivered, values_of, with_values
from fetchsgd.quantisers import Bits, Step
from fetchsgd.sketch import CountSketch

CPU = torch.device("cpu")
DIM, K, RATE, ROUNDS = 300, 12, 0.3, 12


def gradients(count=ROUNDS, dim=DIM):
    """Noise with a few coordinates that stand out, as many as k."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(count, dim, generator=generator)
    drawn[:, :K] *= 10
    return drawn


def paper(*given, **options):
    """FetchSGD as in the paper."""
    return FetchSGD(*given, hash="fixed", **options)


def methods():
    fetchsgd = [
        paper(DIM, k=K, cols=60),
        paper(DIM, k=K, cols=60, mask_momentum=False),
        paper(DIM, k=K, cols=60, rows=3, error_reset="subtract", momentum=0.5),
        paper(DIM, k=K, cols=60, rows=3, lr_position="outside"),
        paper(DIM, k=K, cols=60, rows=4),
        paper(DIM, k=K, cols=60, momentum=0.5, recovery="threshold", tau=0.99),
    ]
    return [*fetchsgd, TrueTopK(DIM, K), TrueTopK(DIM, K, momentum=0.0)]


class Halves:
    """A grid of whole quarters, coarse enough that some coordinates get nothing."""

    exact = False

    def __call__(self, wanted):
        return Delivered(with_values(wanted, (4 * values_of(wanted)).trunc() / 4))


halves = Halves()


def train(method, given, deliver=IDENTITY):
    """The states and updates of a plain run, beside which the oracles compute."""
    state, history = method.init(CPU), []
    for gradient in given:
        mean = method.message.compress([gradient[:100], gradient[100:]])
        sent, after = method.step(mean, state, RATE, deliver)
        history.append((mean, state, sent.update, after))
        state = after
    return history


def noted(method, given, deliver=IDENTITY, **options):
    """What is measured in every round, and the last state."""
    watched = Diagnosed(method, every=1, **options)
    state, found = watched.init(CPU), []
    for gradient in given:
        mean = watched.message.compress([gradient[:100], gradient[100:]])
        _, state = watched.step(mean, state, RATE, deliver)
        found.append(watched.book.means())
    return found, state


def column(found, name):
    return torch.tensor([line[f"diagnose_{name}"] for line in found])


def share(x):
    return float(x.double().square().max() / x.double().square().sum())


def norm2(x):
    return float(x.double().square().sum())


def rates(method):
    outside = isinstance(method, FetchSGD) and method.lr_position == "outside"
    return (1.0, RATE) if outside else (RATE, 1.0)


def cells_of(method):
    """Cell and sign of every coordinate, for sketches of one row."""
    tables = method.sketch.sketch(torch.eye(DIM))[:, 0]
    return tables.abs().argmax(dim=1).tolist(), tables.sum(dim=1).tolist()


def oracle_q(method, given, history, wanted=None):
    """q^t and C(q^t) as vectors: Algorithm 1 along what was sent, coordinate by coordinate.

    With one row whatever shares a cell with what is sent is cleared as well, and what a grid has
    left of a cell is dealt out among those that were found there.
    """
    inside, outside = rates(method)
    zero = isinstance(method, FetchSGD) and method.error_reset == "zero"
    cell = list(range(DIM))  # of vectors, and as good as that of several rows
    if isinstance(method, FetchSGD) and method.rows == 1:
        cell, _ = cells_of(method)
    u, e = torch.zeros(DIM, dtype=torch.float64), torch.zeros(DIM, dtype=torch.float64)
    for t, (gradient, (_, _, update, _)) in enumerate(zip(given, history, strict=True)):
        sent = update.to_dense().double() / outside
        found = sent if wanted is None else wanted[t].to_dense().double() / outside
        u = method.momentum * u + gradient.double()
        q = inside * u + e
        yield q, found
        e = q - sent
        cleared = {cell[i] for i in sent.nonzero().flatten().tolist()}
        finders = Counter(cell[i] for i in found.nonzero().flatten().tolist())
        for i in range(DIM):
            if cell[i] in cleared and zero:
                e[i] = (found[i] - sent[i]) / max(finders[cell[i]], 1)
            if cell[i] in cleared and method.mask_momentum:
                u[i] = 0


@pytest.mark.parametrize("deliver", [IDENTITY, halves], ids=["exactly", "grid"])
@pytest.mark.parametrize("method", methods(), ids=str)
def test_heaviest_share_and_contraction_are_those_of_q(method, deliver):
    given, wanted = gradients(), []

    class Remember:
        exact = deliver.exact

        def __call__(self, update):
            wanted.append(update)
            return deliver(update)

    history = train(method, given, Remember())
    expected = list(oracle_q(method, given, history, wanted))
    found, _ = noted(method, given, deliver)
    shares = torch.tensor([share(q) for q, _ in expected])
    contractions = torch.tensor([norm2(q - c) / norm2(q) for q, c in expected])
    assert_close(column(found, "heaviest_share"), shares, rtol=1e-4, atol=0)
    assert_close(column(found, "contraction"), contractions, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("deliver", [IDENTITY, halves], ids=["exactly", "grid"])
@pytest.mark.parametrize("reset", ["zero", "subtract"])
@pytest.mark.filterwarnings("ignore:method.error_reset")
def test_with_one_row_the_shadow_is_what_the_method_has_sketched(reset, deliver):
    """S(u) = S_u and S(e) = S_e, through clearing, masking and rounding."""
    method = paper(DIM, k=K, cols=60, error_reset=reset, momentum=0.5)
    watched = Diagnosed(method)
    state = watched.init(CPU)
    for gradient in gradients(6):
        _, state = watched.step(watched.message.compress(gradient), state, 0.05, deliver)
    for vector, table in (
        (watched.shadow.momentum, state["momentum"]),
        (watched.shadow.error, state["error"]),
    ):
        assert_close(method.sketch.sketch(vector), table, rtol=1e-4, atol=1e-4)
        assert float(table.norm()) > 0.1


@pytest.mark.parametrize("method", methods(), ids=str)
def test_what_masks_and_resets_leave_is_seen_in_the_method_s_own_state(method):
    given = gradients()
    inside, _ = rates(method)
    left, masked = [], []
    for mean, state, _, after in train(method, given):
        u = method.momentum * state["momentum"].double() + mean.double()
        left.append(norm2(after["error"]) / norm2(inside * u + state["error"]))
        masked.append(1 - norm2(after["momentum"]) / norm2(u))
    found, _ = noted(method, given)
    assert_close(column(found, "error_left"), torch.tensor(left), rtol=1e-4, atol=1e-6)
    if method.mask_momentum:
        assert_close(column(found, "masked_share"), torch.tensor(masked), rtol=1e-4, atol=1e-6)
        assert max(masked) > 0.05 or method == methods()[5]  # which finds nothing at all
    else:
        assert "diagnose_masked_share" not in found[0]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_estimation_error_is_that_of_the_gradient_s_estimates(rows, exact):
    method = paper(DIM, k=K, cols=60, rows=rows)
    given = gradients()
    found, _ = noted(method, given, exact=exact)
    for gradient, line in zip(given, found, strict=True):
        errors = method.sketch.estimate(method.sketch.sketch(gradient)) - gradient
        expected = math.sqrt(norm2(errors) / DIM / norm2(gradient))
        # A sample of 1,024 of 300 coordinates, with repeats, is not all of them evenly.
        assert line["diagnose_estimation_error"] == pytest.approx(expected, rel=0.2)
    assert "diagnose_estimation_error" not in noted(TrueTopK(DIM, K), given)[0][0]


def test_the_error_of_one_client_stands_for_a_cohort_sketched_one_by_one():
    method, given = paper(DIM, k=K, cols=60), gradients(5)
    watched = Diagnosed(method, every=1, exact=False)
    assert torch.equal(watched.message.compress(given), method.message.compress(given))
    alone = Diagnosed(method, every=1, exact=False)
    alone.message.compress(given[0])
    assert watched.book.means() == alone.book.means() != {}


@pytest.mark.parametrize("window", [1, 2, 6, 8])
@pytest.mark.parametrize("every", [1, 3, 8])
def test_sliding_share_is_the_largest_of_all_windows(every, window):
    method, given = paper(DIM, k=K, cols=60), gradients(30)
    watched = Diagnosed(method, every=every, window=window)
    state = watched.init(CPU)
    lengths = sorted({length for length in (1, 2, 4, 8) if length <= window} | {window})
    period = next(n for n in range(every, 99, every) if n >= window)
    for t, gradient in enumerate(given, 1):
        _, state = watched.step(watched.message.compress(gradient), state, RATE)
        seen = watched.book.means().get("diagnose_sliding_share")
        if t % period:
            assert seen is None
        else:
            shares = [share(given[t - length : t].sum(dim=0)) for length in lengths]
            assert seen == pytest.approx(max(shares), rel=1e-4)


def test_a_sum_that_has_missed_its_beginning_is_left_out():
    sums, given = SlidingSums(window=4, period=4), gradients(5)
    (one, two) = [sums.add(given[t], t + 1) for t in (2, 3)][1]  # rounds 3 and 4 alone
    assert torch.equal(one, given[2] + given[3])
    assert torch.equal(two, given[3])


def planted(dim, heavy):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, dim, generator=generator)
    x[:, 7] = heavy * math.sqrt(dim)
    return x


@pytest.mark.parametrize("rows", [3, 5])
def test_estimates_from_several_rows_come_near_the_truth(rows):
    """A heavy coordinate and the contraction that it brings, with 10 times fewer cells a row.

    Squared norms are right within sqrt(2 / cols) = 0.03 of themselves, the heavy coordinate within
    sqrt(1 / cols) = 0.02 of the norm, its square within 0.03; three standard deviations of one row
    are allowed, which a median of three leaves with a chance below 1e-4.
    """
    dim, cols = 20_000, 2_000
    method = paper(dim, k=1, cols=cols, rows=rows, momentum=0.0, error_reset="subtract")
    given = planted(dim, 0.8)
    exact, _ = noted(method, given, exact=True, window=1)
    estimated, _ = noted(method, given, exact=False, window=1)
    exact_sums = exact[3::4]  # the others were not estimated
    for name in ("heaviest_share", "contraction", "sliding_share"):
        of_sums = name == "sliding_share"
        truth = column(exact_sums if of_sums else exact, name)
        difference = (column(estimated[3::4] if of_sums else estimated, name) - truth).abs()
        assert 0 < float(difference.max()) < 0.1
    assert 0.3 < float(column(exact, "heaviest_share")[0]) < 0.5


def test_with_one_row_the_estimated_contraction_is_nearly_exact():
    """Whole cells are found, so the product with q is known; only |q| is estimated.

    Within a tenth in the first round. Later |q| is taken for too small: cells are cleared by how
    much they hold, and what stays is what cancels in its cell.
    """
    dim, cols = 4_000, 1_000
    method = paper(dim, k=400, cols=cols, momentum=0.0)
    given = planted(dim, 0.5)
    exact, _ = noted(method, given, exact=True)
    estimated, _ = noted(method, given, exact=False)
    truth = column(exact, "contraction")
    assert float(truth.min()) > 1.2  # C is no contraction at all with one row
    assert_close(column(estimated, "contraction")[0], truth[0], rtol=0.1, atol=0)
    assert_close(column(estimated, "contraction"), truth, rtol=0.3, atol=0)
    for line in estimated:
        assert line["diagnose_error_left"] < 1


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_the_estimated_share_is_that_of_the_largest_estimate(rows):
    sketch = CountSketch(DIM, rows, 60)
    table = sketch.sketch(gradients(1)[0] ** 3)
    largest = sketch.estimate(table).abs().max()
    expected = norm2(largest) / sketch.l2(table) ** 2
    assert float(Sketched(sketch).heaviest_share(table)) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(largest, table.abs().max()) == (rows == 1)


def test_cells_know_who_shares_them():
    sketch = CountSketch(DIM, 1, 60)
    cells, own = Cells(sketch, CPU), sketch.sketch(torch.eye(DIM))[:, 0].abs().argmax(dim=1)
    for coordinate in torch.arange(DIM).split(1):
        at, is_mate = cells.beside(coordinate)
        assert len(set(at.tolist())) == len(at) == int(own.bincount().max())
        expected = (own == own[coordinate]).nonzero().flatten()
        assert torch.equal(at[is_mate].sort().values, expected)


def test_nothing_heavy_gives_the_floor_of_the_estimate():
    """The largest of all cells of noise: 2 ln(cols) / cols, of which we allow twice and half."""
    dim, cols = 20_000, 2_000
    flat = torch.randn(1, dim, generator=torch.Generator().manual_seed(3))
    found, _ = noted(paper(dim, k=1, cols=cols), flat, exact=False)
    floor = 2 * math.log(cols) / cols
    assert floor / 2 < float(column(found, "heaviest_share")[0]) < 2 * floor


def test_a_window_of_errors_has_no_q():
    method = paper(DIM, k=K, cols=60, momentum=0.0, error="window", window=3)
    for exact in (True, False):
        found, _ = noted(method, gradients(), exact=exact, window=1)
        assert set(found[0]) == {
            f"diagnose_{name}" for name in ("sliding_share", "masked_share", "estimation_error")
        }


def test_shares_of_nothing_are_left_out_of_the_mean():
    watched = Diagnosed(TrueTopK(4, 1, momentum=0.0), every=1)
    state = watched.init(CPU)
    for gradient in torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]]):
        _, state = watched.step(watched.message.compress(gradient), state, RATE)
    assert watched.book.means()["diagnose_heaviest_share"] == pytest.approx(0.9)
    assert watched.book.means() == {}


@pytest.mark.parametrize("deliver", [IDENTITY, halves], ids=["exactly", "grid"])
@pytest.mark.parametrize("method", methods(), ids=str)
def test_looking_on_changes_no_bit(method, deliver):
    given = gradients()
    *_, (_, _, _, expected) = train(method, given, deliver)
    for exact in (True, False):
        _, state = noted(method, given, deliver, exact=exact)
        assert torch.equal(state["momentum"], expected["momentum"])
        assert torch.equal(state["error"], expected["error"])


# --- fresh hashes


def fresh(**options):
    return FetchSGD(DIM, k=K, **({"cols": 60, "block": 1} | options))


FRESH = [
    fresh(),
    fresh(decode="unbiased"),
    fresh(decode="unbiased", noise_limit=100.0, mask_momentum=False),
    fresh(rows=3, momentum=0.5),
]


def looked_at(method, given, rounded=None, **options):
    """What is measured in every round, with what was sent and the states on the way."""
    watched = Diagnosed(method, every=1, **options)
    state, found = watched.init(CPU), []
    for round, cohort in enumerate(given):
        if rounded is None:
            mean = watched.message.compress([cohort[:100], cohort[100:]], round)
        else:
            mean = merged(watched.message, cohort, rounded, round)
        before = state
        sent, state = watched.step(mean, state, RATE, round=round)
        found.append((watched.book.means(), mean, before, sent, state))
    return found


def merged(message, cohort, quantiser, round):
    """In two chunks, as where memory is short."""
    shares, clients = torch.tensor([0.2, 0.3, 0.5]), torch.arange(3)
    upload = Upload(quantiser, 5 + round, round)
    parts = [
        message.merge(cohort[part], shares[part], clients[part], upload, None).total
        for part in (slice(0, 2), slice(2, 3))
    ]
    return parts[0] + parts[1]


@pytest.mark.parametrize("method", FRESH, ids=str)
def test_with_fresh_hashes_noise_is_that_of_what_is_decoded(method):
    given = gradients()
    for round, (line, mean, before, _, _) in enumerate(looked_at(method, given)):
        estimate, g = method.read(mean, before, round).estimate.double(), given[round].double()
        assert line["diagnose_decoding_error"] == pytest.approx(norm2(estimate - g) / norm2(g))
        assert line["diagnose_decoded_along"] == pytest.approx(float(estimate @ g) / norm2(g))
        length = math.sqrt(norm2(estimate) / norm2(g))
        assert line["diagnose_decoded_length"] == pytest.approx(length)
        assert ("diagnose_horizon" in line) == isinstance(method.decoder, Prior)
        assert ("diagnose_decoding_error_predicted" in line) == (method.rows == 1)
        assert "diagnose_rounding_share" not in line


@pytest.mark.parametrize("method", FRESH, ids=str)
def test_with_fresh_hashes_momentum_and_error_are_exact(method):
    for round, (line, mean, before, sent, after) in enumerate(looked_at(method, gradients())):
        u = method.momentum * before["momentum"] + method.read(mean, before, round).estimate
        q = (RATE * u + before["error"]).double()
        left = norm2(q - sent.sparse.to_dense())
        assert line["diagnose_heaviest_share"] == pytest.approx(share(q), rel=1e-4)
        assert line["diagnose_contraction"] == pytest.approx(left / norm2(q), rel=1e-4)
        assert line["diagnose_error_left"] == pytest.approx(norm2(after["error"]) / norm2(q))
        if method.mask_momentum:
            masked = 1 - norm2(after["momentum"]) / norm2(u)
            assert line["diagnose_masked_share"] == pytest.approx(masked, rel=1e-3)
        assert not {"diagnose_sliding_share", "diagnose_estimation_error"} & line.keys()


@pytest.mark.parametrize("decode", ["unbiased", "prior"])
@pytest.mark.parametrize("quantiser", [None, Step(1.0), Step(4.0)], ids=str)
def test_noise_is_as_predicted(decode, quantiser):
    """Over 60 rounds of gradients that come from the variances: within 12 % on average.

    The prior is told these variances, which takes the learning out of it.
    """
    generator = torch.Generator().manual_seed(4)
    variance = torch.ones(DIM)
    variance[:K] = 50.0
    drawn = torch.randn(60, 3, DIM, generator=generator) * variance.sqrt()
    method = fresh(decode=decode)
    watched = Diagnosed(method, every=1)
    lines = []
    for round, cohort in enumerate(drawn):
        state = watched.init(CPU)
        if decode == "prior":
            state["variance"] = variance
        if quantiser is None:
            mean = watched.message.compress(cohort.mean(dim=0), round)
        else:
            mean = merged(watched.message, cohort, quantiser, round)
        watched.step(mean, state, RATE, round=round)
        lines.append(watched.book.means())
    for name in ("decoding_error", *(["rounding_share"] if quantiser else [])):
        measured, predicted = (
            float(column(lines, key).mean()) for key in (name, f"{name}_predicted")
        )
        assert predicted == pytest.approx(measured, rel=0.12), name
    if quantiser == Step(4.0):
        assert float(column(lines, "rounding_share").mean()) > 0.3


def test_rounding_by_other_quantisers_is_measured_and_not_predicted():
    drawn = torch.randn(4, 3, DIM, generator=torch.Generator().manual_seed(4))
    for line, *_ in looked_at(fresh(), drawn, Bits(2)):
        assert 0 < line["diagnose_rounding_share"] < 1
        assert "diagnose_rounding_share_predicted" not in line


@pytest.mark.parametrize("quantiser", [None, Step(2.0)], ids=str)
@pytest.mark.parametrize("method", FRESH, ids=str)
def test_looking_on_changes_no_bit_with_fresh_hashes(method, quantiser):
    generator = torch.Generator().manual_seed(4)
    given = torch.randn(6, 3, DIM, generator=generator) if quantiser else gradients(6)
    for exact in (True, False):
        state = method.init(CPU)
        for round, (_, mean, _, sent, after) in enumerate(
            looked_at(method, given, quantiser, exact=exact)
        ):
            expected, state = method.step(mean, state, RATE, round=round)
            assert torch.equal(sent.sparse.values, expected.sparse.values)
            assert all(torch.equal(after[name], state[name]) for name in state)


def test_without_the_truth_the_length_is_that_over_the_sketch():
    for line, mean, before, _, _ in looked_at(fresh(), gradients(1), exact=False):
        estimate = fresh().read(mean, before, 0).estimate
        expected = float(estimate.norm() / mean.norm())
        assert line["diagnose_decoded_length"] == pytest.approx(expected)
        assert "diagnose_decoding_error" not in line


@pytest.mark.gpu
@pytest.mark.parametrize("quantiser", [None, Step(2.0), Bits(2)], ids=str)
@pytest.mark.parametrize("method", FRESH, ids=str)
def test_on_a_gpu_nothing_waits_and_notes_are_in_one_place(method, quantiser):
    watched = Diagnosed(method, every=1)
    cuda = torch.device("cuda")
    given = torch.randn(2, 3, DIM, device=cuda)
    state = watched.init(cuda)
    for round, cohort in enumerate(given):
        shares, clients = torch.full((3,), 1 / 3, device=cuda), torch.arange(3, device=cuda)
        with nothing_waits() if round else nullcontext():  # after kernels have been compiled
            if quantiser is None:
                mean = watched.message.compress(cohort.mean(dim=0), round)
            else:
                upload = Upload(quantiser, 5, round)
                mean = watched.message.merge(cohort, shares, clients, upload, None).total
            _, state = watched.step(mean, state, RATE, round=round, check_finite=False)
    assert watched.book.means()["diagnose_decoding_error"] > 0
