"""What is accepted, what it adds up to, and what is not. Without Flower."""

import math
from dataclasses import replace

import pytest
import torch

from fetchsgd.exchange.merging import Expected, RunningMean, judge, length
from fetchsgd.exchange.messages import Answer
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.work import row_of
from fetchsgd.methods import FedAvg, FetchSGD, LocalTopK, Reply, Upload
from fetchsgd.quantisers import Bits
from fetchsgd.wire import Floats, decode, encode

DIM = 200
METHODS = [FetchSGD(DIM, k=20, cols=40, rows=3), FedAvg(DIM), LocalTopK(DIM, 20)]


def expected(method, bits=32, **more):
    return Expected(
        method.message, Bits(bits), "digest", "lineage", 5, **({"by_examples": True} | more)
    )


def answer(method, vector, client=1, examples=3, bits=32):
    payload = method.message.write(vector, None, client, 5, Upload(Bits(bits), key=0))
    return Answer("digest", "lineage", 5, client, examples, 0.5, encode(payload))


def vectors(n):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("bits", [32, 16, 4, 2])
def test_the_mean_is_that_of_what_was_sent_in_any_order(method, bits):
    sent = vectors(6)
    examples = [1, 5, 2, 8, 3, 1]
    replies = [
        judge(answer(method, vector, client, n, bits), client, expected(method, bits))
        for client, (vector, n) in enumerate(zip(sent, examples, strict=True))
    ]
    means = []
    for order in (range(6), reversed(range(6))):
        mean = RunningMean(method.message, torch.device("cpu"))
        for client in order:
            mean.add(client, replies[client])
        means.append(mean.merged())
    assert torch.equal(means[0].mean, means[1].mean)
    dense = torch.stack([_dense(reply) for reply in replies])
    shares = torch.tensor(examples, dtype=torch.float64) / sum(examples)
    wanted = (shares @ dense.double().flatten(1)).view(means[0].mean.shape)
    torch.testing.assert_close(means[0].mean.double(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 50_000), (2, 65_536), (2, 131_073)])
def test_norm_and_sum_are_those_of_doubles(shape, generator):
    numbers = 3 * torch.randn(shape, generator=generator)
    rows = numbers.double().view(-1, shape[-1]) if numbers.numel() else torch.zeros(1, 1)
    assert length(numbers) == pytest.approx(float(rows.norm(dim=1).max()), rel=1e-12)
    message = replace(FedAvg(DIM).message, dim=numbers.numel())
    total = torch.randn(numbers.numel(), dtype=torch.float64, generator=generator)
    wanted = total + 0.7 * numbers.double().flatten()
    message.add(total, Reply(numbers.flatten(), numbers.numel()), 0.7)
    torch.testing.assert_close(total, wanted, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("cols", [7, 256, 1000, 5003])
def test_levels_are_judged_and_added_as_their_floats_are(bits, cols):
    """To the bit, though there is no table of floats; rows need not end where runs do."""
    method = FetchSGD(DIM, k=20, cols=cols, rows=3)
    reply = answer(method, vectors(1)[0], bits=bits)
    found = judge(reply, 1, expected(method, bits))
    floats = decode(reply.payload).values.floats().view(3, cols)
    assert found.norm == length(floats)
    assert torch.equal(found.reply.numbers, floats)
    sums = [torch.full((3, cols), 0.1, dtype=torch.float64) for _ in range(2)]
    for total, one in zip(sums, (found.reply, Reply(floats, floats.numel())), strict=True):
        method.message.add(total, one, 3.7)
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [(0, 0), (1, 4095), (1, 4096), (2, 8192)])
def test_one_number_that_is_not_finite_shows_in_the_norm(bad, at):
    numbers = torch.full((3, 8193), 3e38)
    assert math.isfinite(length(numbers))
    numbers[at] = bad
    assert not math.isfinite(length(numbers))


def _dense(accepted):
    numbers, places = accepted.reply.numbers, accepted.reply.places
    return numbers if places is None else torch.zeros(DIM).index_put((places,), numbers)


def test_uniform_weights():
    method = FedAvg(DIM)
    mean = RunningMean(method.message, torch.device("cpu"))
    for client, vector in enumerate(vectors(3)):
        reply = answer(method, vector, client, examples=1 + 10 * client)
        mean.add(client, judge(reply, client, expected(method, by_examples=False)))
    torch.testing.assert_close(mean.merged().mean, vectors(3).mean(0))
    assert len(mean) == 3


def test_predicted_sizes_are_those_of_messages():
    for method in METHODS:
        for bits in (32, 16, 4):
            reply = answer(method, vectors(1)[0], bits=bits)
            found = judge(reply, 1, expected(method, bits)).predicted_bytes
            assert found == pytest.approx(len(reply.payload), rel=0.02, abs=12)


def test_a_bad_row_of_a_table_does_not_hide_behind_the_median():
    method = METHODS[0]
    reply = answer(method, vectors(1)[0])
    table = decode(reply.payload)
    cells = table.values.values.clone()
    cells[:40] *= 1e9
    bad = replace(reply, payload=encode(replace(table, values=Floats(cells))))
    with pytest.raises(RejectedError, match="above federation.max_norm = 1e"):
        judge(bad, 1, expected(method, max_norm=1e6))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_clipping_is_by_the_norm_or_the_longest_row(method):
    reply = answer(method, vectors(1)[0])
    whole = judge(reply, 1, expected(method))
    clipped = judge(reply, 1, expected(method, clip_norm=2.0))
    longest = whole.reply.numbers.norm(dim=-1).max()
    torch.testing.assert_close(clipped.reply.numbers, whole.reply.numbers * (2.0 / longest))
    assert clipped.norm == pytest.approx(2.0)
    same = judge(reply, 1, expected(method, clip_norm=1e5))
    assert torch.equal(same.reply.numbers, whole.reply.numbers)


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_half_of_the_rows_cannot_be_longer_than_the_clip(rows):
    """A median over rows would let half of them pass as they are."""
    method = FetchSGD(DIM, k=20, cols=40, rows=rows)
    reply = answer(method, vectors(1)[0])
    table = decode(reply.payload)
    cells = table.values.values.clone().view(rows, 40)
    cells[: rows // 2] *= 1e9
    bad = replace(reply, payload=encode(replace(table, values=Floats(cells.flatten()))))
    clipped = judge(bad, 1, expected(method, clip_norm=2.0))
    assert float(clipped.reply.numbers.norm(dim=1).max()) == pytest.approx(2.0)


def test_numbers_of_other_bits_are_refused():
    method = FedAvg(DIM)
    with pytest.raises(RejectedError, match="not written by Bits.bits=2"):
        judge(answer(method, vectors(1)[0], bits=4), 1, expected(method, 2))


def test_a_task_with_one_client_holds_that_clients_data():
    assert row_of(17, 1) == 0
    assert row_of(3, 12) == 3
    with pytest.raises(ValueError, match="partition-id is 17, but the task has clients 0 to 11"):
        row_of(17, 12)
