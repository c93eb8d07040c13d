"""SparseLoCo's scheme: which coordinates are sent, what workers keep, and what it costs."""

import pytest
import torch

from fetchsgd.methods import SparseLoCo, Upload
from fetchsgd.quantisers import Bits, TwoBits
from fetchsgd.wire import decode, encode
from fetchsgd.wire.header import HEADER_BYTES

CPU, CLIENTS, SHARES = torch.device("cpu"), torch.tensor([4, 0, 2]), torch.tensor([0.5, 0.3, 0.2])


def random(dim, seed=0):
    return torch.randn(3, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("dim", "numbers"), [(40, 8), (47, 10), (5, 1), (10, 2)])
def test_the_largest_of_each_chunk(dim, numbers):
    message, rows = SparseLoCo(dim, chunk=10, per_chunk=2).message, random(dim)
    places = message.places(rows)
    assert places.shape == (3, numbers) == (3, message.numbers)
    for row, chosen in zip(rows, places.tolist(), strict=True):
        expected = []
        for start in range(0, dim, 10):
            chunk = row[start : start + 10].abs()
            count = -(-2 * len(chunk) // 10)
            expected += sorted((start + chunk.topk(count).indices).tolist())
        assert chosen == expected


@pytest.mark.parametrize("quantiser", [Bits(32), TwoBits()], ids=str)
def test_given_is_sent_plus_kept(quantiser):
    """error' = decay * error + vector - sent, in a cohort and for a client alone, to the bit."""
    message = SparseLoCo(95, chunk=10, per_chunk=2, error_decay=0.5).message
    memory, alone = message.first_memory(6, CPU), message.first_memory(1, CPU)
    for round in range(4):
        upload, vectors, before = (
            Upload(quantiser, 7, round),
            random(95, round),
            memory["error"].clone(),
        )
        merged = message.merge(vectors, SHARES, CLIENTS, upload, memory)
        given = 0.5 * before[CLIENTS] + vectors
        sent = given - memory["error"][CLIENTS]
        torch.testing.assert_close(merged.total, SHARES @ sent, rtol=1e-5, atol=1e-6)
        remembered = message.remember(vectors[1], alone)
        payload = decode(encode(message.write(vectors[1], remembered, 0, round, upload)))
        alone = message.forget(remembered, payload)
        assert torch.equal(alone["error"][0], memory["error"][0])


def test_the_published_scheme_takes_146_times_less_than_float32():
    """64 of 4,096 with 12 bits for an index and 2 for a value; positions are coded shorter here."""
    message = SparseLoCo(100 * 4096).message
    vectors, upload = random(100 * 4096), Upload(TwoBits(), 7)
    assert message.numbers == 6400
    data = encode(message.write(vectors[0], None, 0, 0, upload))
    published = 32 * 4096 / (64 * (12 + 2))
    assert published == pytest.approx(146.3, abs=0.1)
    assert 200 < 4 * 100 * 4096 / (len(data) - HEADER_BYTES) < 230
    merged = message.merge(vectors, SHARES, CLIENTS, upload, None)
    assert float(merged.bytes) / 3 == pytest.approx(len(data), rel=0.005)


def test_options_out_of_range():
    with pytest.raises(ValueError, match="method.per_chunk must be from 1 to 10, got 11"):
        SparseLoCo(50, chunk=10, per_chunk=11)
