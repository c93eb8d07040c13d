"""What clients send: real clients one by one equal a simulated cohort; all else is refused."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from wire.messages import assert_predicted

from fetchsgd.methods import METHODS, ChosenMessage, DenseMessage, SketchMessage, Upload
from fetchsgd.quantisers import Bits
from fetchsgd.sketch import CountSketch
from fetchsgd.wire import (
    DenseVector,
    Floats,
    Integers,
    MismatchError,
    SparseUpdate,
    WholeModel,
    decode,
    encode,
)
from fetchsgd.wire.header import HEADER_BYTES

CPU = torch.device("cpu")
# So large that messages have more than 2 kB even at two bits a number.
DIM, K, TABLE = 30_000, 5_000, {"cols": 5_000, "rows": 5}
ROUND, KEY = 5, 99
CLIENTS = torch.tensor([7, 2, 9, 4, 0])
SHARES = torch.tensor([0.3, 0.1, 0.2, 0.15, 0.25])
OPTIONS = {
    "fetchsgd": {"k": K, **TABLE},
    "fetchsgd-paper": {"k": K, **TABLE, "hash": "fixed"},
    "fedavg": {},
    "local_topk": {"k": K},
    "sparse_loco": {"per_chunk": 1024},
    "true_topk": {"k": K},
    "uncompressed": {},
}
MEMORIES = [
    {"error": True},
    {"momentum": 0.5},
    {"error": True, "momentum": 0.5},
]
widths = pytest.mark.parametrize("bits", [32, 16, 4, 2])


def message_of(name):
    return METHODS[name.removesuffix("-paper")](DIM, **OPTIONS[name]).message


def cohort(seed=0, dim=DIM):
    """Vectors that differ in size; one has fewer numbers than k, one has ties."""
    vectors = torch.randn(len(CLIENTS), dim, generator=torch.Generator().manual_seed(seed))
    vectors *= torch.tensor([1, 1e-3, 20, 3, 1.0])[:, None]
    vectors[1, dim // 10 :] = 0
    vectors[3] = vectors[3].round()
    return vectors


def received(message, payload, quantiser):
    """What the server has of a payload that travels as bytes."""
    check = partial(message.check, round=ROUND, quantiser=quantiser)
    return message.read(decode(encode(payload), expect=check))


def test_options_are_for_all_methods():
    assert OPTIONS.keys() - {"fetchsgd-paper"} == METHODS.keys()


@widths
@pytest.mark.parametrize("name", OPTIONS)
def test_messages_one_by_one_add_up_to_the_merged_cohort(name, bits):
    message, upload, vectors = message_of(name), Upload(Bits(bits), KEY, ROUND), cohort()
    merged = message.merge(vectors, SHARES, CLIENTS, upload, None)
    total, numbers = torch.zeros(message.shape, dtype=torch.float64), 0
    for vector, client, share in zip(vectors, CLIENTS.tolist(), SHARES.tolist(), strict=True):
        payload = message.write(vector, None, client, ROUND, upload)
        reply = received(message, payload, upload.quantiser)
        message.add(total, reply, share)
        numbers += reply.counted
    assert merged.total.shape == message.shape
    close = {"rtol": 1e-5, "atol": 1e-6 * float(total.abs().max())}
    torch.testing.assert_close(merged.total, total.float(), **close)
    if message.linear or bits >= 16:
        assert numbers == int(merged.numbers)
    else:  # fewer bits count no less, but a zero that was chosen looks like one that was rounded
        assert numbers == len(CLIENTS) * message.numbers >= int(merged.numbers)
    assert 0 < numbers <= len(CLIENTS) * message.numbers


@widths
@pytest.mark.parametrize("name", OPTIONS)
def test_sizes_are_predicted_and_bounded(name, bits):
    message, upload, vectors = message_of(name), Upload(Bits(bits), KEY, ROUND), cohort()
    sizes = []
    for vector, client in zip(vectors, CLIENTS.tolist(), strict=True):
        payload = message.write(vector, None, client, ROUND, upload)
        data = encode(payload)
        sizes.append(len(data))
        assert_predicted(message.predicted_bytes(payload) - HEADER_BYTES, data)
        assert len(data) <= message.most_bytes(upload.quantiser)
    assert sorted(sizes)[1] > 2000  # all but that of the vector that is mostly zeros
    counted = message.merge(vectors, SHARES, CLIENTS, upload, None).bytes
    assert float(counted) == pytest.approx(sum(sizes), rel=0.005)
    if message.linear and upload.quantiser.exact:
        assert message.exact_cost(5, upload.quantiser) == (5 * message.numbers, sum(sizes))


@widths
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    "vector",
    [
        torch.zeros(DIM),
        torch.ones(DIM),
        torch.eye(1, DIM)[0],
        torch.arange(DIM).float(),
        torch.randn(DIM, generator=torch.Generator().manual_seed(1)) ** 9,
    ],
    ids=["zeros", "ones", "one", "front empty", "heavy tails"],
)
def test_no_vector_makes_a_message_longer_than_the_most(name, bits, vector):
    message, upload = message_of(name), Upload(Bits(bits), KEY, ROUND)
    data = encode(message.write(vector, None, 3, ROUND, upload))
    assert len(data) <= message.most_bytes(upload.quantiser)


# --- what the server refuses

SKETCH = SketchMessage(CountSketch(60, 3, 20, seed=1, block=2))
DENSE = DenseMessage(60)
CHOSEN = ChosenMessage(60, k=10)
THREE = pytest.mark.parametrize("message", [SKETCH, DENSE, CHOSEN], ids=["sketch", "dense", "k"])


def written(message, bits=32, round=ROUND):
    dim = message.sketch.dim if isinstance(message, SketchMessage) else message.dim
    vector = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    return message.write(vector, None, 0, round, Upload(Bits(bits), KEY, round))


def refused(message, payload, bits=32):
    """The reason that the server gives."""
    check = partial(message.check, round=ROUND, quantiser=Bits(bits))
    with pytest.raises(MismatchError) as raised:
        decode(encode(payload), expect=check)
    return raised.value.reason


@THREE
def test_its_own_messages_are_accepted(message):
    for bits in (32, 16, 8, 6, 4, 3, 2):
        received(message, written(message, bits), Bits(bits))


@pytest.mark.parametrize("message", [SKETCH, DENSE, ChosenMessage(60, k=60)], ids=str)
def test_another_kind_is_refused(message):
    """All of the same dim, and of as many numbers."""
    for other in (SKETCH, DENSE, ChosenMessage(60, k=60)):
        assert other.numbers == 60
        if type(other) is not type(message):
            assert refused(message, written(other)) == "shape"
    assert refused(message, WholeModel(Floats(torch.ones(60)), ROUND)) == "shape"


@pytest.mark.parametrize(
    ("message", "other"),
    [
        (SKETCH, SketchMessage(CountSketch(61, 3, 20, seed=1, block=2))),
        (SKETCH, SketchMessage(CountSketch(60, 1, 20, seed=1, block=2))),
        (SKETCH, SketchMessage(CountSketch(60, 3, 21, seed=1, block=2))),
        (SKETCH, SketchMessage(CountSketch(60, 1, 60, seed=1, block=2))),  # as many cells
        (DENSE, DenseMessage(61)),
        (DENSE, DenseMessage(59)),
        (CHOSEN, ChosenMessage(61, k=10)),
        (CHOSEN, ChosenMessage(60, k=11)),
    ],
    ids=str,
)
def test_another_size_is_refused(message, other):
    assert refused(message, written(other)) == "shape"


def test_fewer_chosen_coordinates_are_accepted():
    for k in (0, 1, 9):
        indices = torch.arange(k)
        reply = received(CHOSEN, SparseUpdate(60, indices, Floats(torch.ones(k)), ROUND), Bits(32))
        assert torch.equal(reply.places, indices)


def test_an_update_of_an_older_version_is_no_upload():
    assert refused(CHOSEN, replace(written(CHOSEN), since=1)) == "shape"


@pytest.mark.parametrize("hash", [{"seed": 2, "block": 2}, {"seed": 1, "block": 4}], ids=str)
def test_another_hash_is_refused(hash):
    assert refused(SKETCH, written(SketchMessage(CountSketch(60, 3, 20, **hash)))) == "seed"


@THREE
def test_another_round_is_refused(message):
    for round in (0, ROUND - 1, ROUND + 1):
        assert refused(message, written(message, round=round)) == "round"


@THREE
def test_numbers_of_another_quantiser_are_refused(message):
    for sent, expected in ((32, 16), (16, 32), (4, 2), (2, 4), (8, 32), (32, 8)):
        assert refused(message, written(message, sent), expected) == "shape"


@THREE
def test_numbers_that_no_quantiser_writes_are_refused(message):
    payload = written(message)
    count = payload.values.count
    half = replace(payload, values=Floats(torch.ones(count).half()))
    integers = replace(payload, values=Integers(torch.ones(count, dtype=torch.int64)))
    for wrong in (half, integers):
        for bits in (32, 16, 4):
            assert refused(message, wrong, bits) == "shape"


def test_the_kind_is_judged_before_hash_round_and_numbers():
    """So that the reason does not depend on what else is wrong."""
    payload = DenseVector(Floats(torch.ones(60).half()), ROUND + 1)
    assert refused(SKETCH, payload) == "shape"


# --- what clients remember


@widths
@pytest.mark.parametrize("options", MEMORIES, ids=str)
def test_a_client_alone_remembers_what_it_remembers_in_a_cohort(options, bits):
    """To the bit, and sends the same, over rounds in which others stay away."""
    message, quantiser = ChosenMessage(1000, k=300, **options), Bits(bits)
    everyone = message.first_memory(12, CPU)
    alone = {client: message.first_memory(1, CPU) for client in CLIENTS.tolist()}
    for round, present in enumerate(([0, 1, 2, 3, 4], [0, 3], [4, 1, 0])):
        vectors, clients, shares = cohort(round, 1000)[present], CLIENTS[present], SHARES[present]
        upload = Upload(quantiser, KEY + round)
        merged = message.merge(vectors, shares, clients, upload, everyone)
        total = torch.zeros(1000, dtype=torch.float64)
        for vector, client, share in zip(vectors, clients.tolist(), shares.tolist(), strict=True):
            memory = message.remember(vector, alone[client])
            payload = decode(encode(message.write(vector, memory, client, round, upload)))
            message.add(total, message.read(payload), share)
            alone[client] = message.forget(memory, payload)
        close = {"rtol": 1e-5, "atol": 1e-6 * float(total.abs().max())}
        torch.testing.assert_close(merged.total, total.float(), **close)
        for client, memory in alone.items():
            assert memory.keys() == everyone.keys()
            for name, rows in memory.items():
                assert torch.equal(rows[0], everyone[name][client])
    stayed_away = sorted(set(range(12)) - set(CLIENTS.tolist()))
    assert all((rows[stayed_away] == 0).all() for rows in everyone.values())


def test_what_was_not_merged_is_kept():
    """given = sent + kept, where a message may get lost: then all of it is kept."""
    message, upload = ChosenMessage(1000, k=100, error=True), Upload(Bits(), KEY)
    memory, sent, given = message.first_memory(1, CPU), torch.zeros(1000), torch.zeros(1000)
    for round in range(6):
        vector = torch.randn(1000, generator=torch.Generator().manual_seed(round))
        given += vector
        memory = message.remember(vector, memory)
        payload = message.write(vector, memory, 3, round, upload)
        if round % 2:  # the others get lost
            sent[payload.indices] += payload.values.floats()
            memory = message.forget(memory, payload)
            assert (memory["error"][0, payload.indices] == 0).all()
        torch.testing.assert_close(sent + memory["error"][0], given)


def test_remembering_leaves_what_it_is_given():
    message = ChosenMessage(1000, k=100, error=True, momentum=0.5)
    before = message.remember(torch.ones(1000), message.first_memory(1, CPU))
    kept = {name: rows.clone() for name, rows in before.items()}
    vector = torch.arange(1000.0)
    after = message.remember(vector, before)
    message.forget(after, message.write(vector, after, 0, 0, Upload(Bits(), KEY)))
    assert torch.equal(vector, torch.arange(1000.0))
    assert all(torch.equal(before[name], kept[name]) for name in kept)


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"sparse_loco"}))
def test_most_clients_remember_nothing(name):
    message = message_of(name)
    assert message.first_memory(12, CPU) is None
    assert message.remember(torch.ones(DIM), None) is None
