"""The client of examples/plain_client, which knows neither fetchsgd nor torch, against ours."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import FakeGrid
from flower.federations import counts, train, weights
from plain_client import client_app, envelope, reading, rounding, seeds, writing
from plain_client.chunk_writing import chunks_section
from plain_client.client import Agreement, Kept, answer, checksum
from plain_client.sketching import Sketch, block_of
from plain_client.weights import Held, step_sizes

from fetchsgd.exchange.agreement import digest
from fetchsgd.exchange.client import Computed, as_sent
from fetchsgd.exchange.messages import Answer, ResendRequest
from fetchsgd.flower import handout
from fetchsgd.flower.handout import write_handout
from fetchsgd.flower.protocol import HEADER, from_records
from fetchsgd.flower.settings import read_settings
from fetchsgd.methods.fetchsgd import SAFE_BLOCK
from fetchsgd.quantisers.levels import Rounding, quantise, round_to_bfloat16
from fetchsgd.quantisers.steps import rms_steps, round_to_steps
from fetchsgd.randomness import PURPOSES, number
from fetchsgd.runs.setup import Setup
from fetchsgd.server.grids.steps import step_sizes as our_step_sizes
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.count_sketch import default_block
from fetchsgd.versions import PROTOCOL, WIRE_FORMAT
from fetchsgd.wire import Integers, SparseUpdate, decode, encode

TASK = {"task.name": "plain_client.task:patterns", "train.clients_per_round": 4}


def setup_with(**more):
    given = TASK | {name.replace("__", "."): value for name, value in more.items()}
    given.setdefault("method.name", "fetchsgd")
    if given["method.name"] == "fetchsgd":
        given = {"method.k": 200, "method.cols": 400} | given
    config, ours = read_settings(given)
    return Setup(config, ours.clients)


def vectors(length):
    """Numbers of all sizes: those of gradients, tiny ones, huge ones, and none."""
    rng = np.random.default_rng(length)
    spread = rng.standard_normal(length) * np.exp(3 * rng.standard_normal(length))
    yield from (spread.astype(np.float32), (spread * 1e-38).astype(np.float32))
    yield (rng.standard_normal(length) * 1e36).astype(np.float32)
    yield np.zeros(length, np.float32)


def same_bits(found, expected):
    return np.array_equal(np.asarray(found).view(np.uint32), np.asarray(expected).view(np.uint32))


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, 2**64 - 1])
def test_keys(seed):
    for purpose in PURPOSES:
        for round in (0, 7, 2**33):
            ours = number(seed, purpose, round)
            assert seeds.round_key(seed, PURPOSES.index(purpose), round) == ours
    assert PURPOSES[seeds.QUANTISE] == "quantise"


@pytest.mark.parametrize("length", [1, 255, 256, 257, 5000])
def test_rounding(length):
    key, client = number(3, "quantise", 5), 7
    for vector in vectors(length):
        rows, clients = torch.from_numpy(vector)[None], torch.tensor([client])
        for bits in (2, 3, 4, 6, 8):
            ours = quantise(rows[0], bits, Rounding(key, client))
            plain = rounding.to_levels(vector, bits, key, client)
            assert same_bits(plain.scales, ours.scales)
            assert same_bits(plain.floats(), ours.floats())
        ours = round_to_bfloat16(rows, key, clients)[0]
        assert same_bits(rounding.to_bfloat16(vector, key, client), ours)
        for tau in (0.5, 8.0):
            steps = rms_steps(rows, tau)
            assert float(rounding.rms_step(vector, tau)) == float(steps)
            ours = round_to_steps(rows, steps, key, clients).levels[0]
            plain = rounding.to_steps(vector, steps.numpy()[0], key, client)
            assert plain.levels.tolist() == ours.tolist()


@pytest.mark.parametrize("hash", ["blocks", "permutation"])
@pytest.mark.parametrize(
    ("rows", "cols", "block"), [(1, 100, 1), (2, 40, 4), (1, 7, 2), (3, 6000, 8)]
)
def test_sketches(rows, cols, block, hash):
    for length in (1, 64, 1000, 5000):
        for vector in vectors(length):
            ours = CountSketch(length, rows, cols, 2**64 - 5, block, hash=hash)
            plain = Sketch(length, rows, cols, block, 2**64 - 5, hash == "permutation")
            assert same_bits(plain.of(vector), ours.sketch(torch.from_numpy(vector)))


def test_blocks_and_steps():
    for cols in (1, 100, 8191, 8192, 20_000, 32_768, 65_536, 10**7):
        for hash, most in SAFE_BLOCK.items():
            assert block_of(cols, hash == "fresh") == min(default_block(cols), most)
    rng = np.random.default_rng(0)
    sizes = (100, 7, 1, 2000)
    for scale in (1.0, 1e-20, 1e20):
        origin = (scale * rng.standard_normal(sum(sizes))).astype(np.float32)
        origin[100:107] = 0.25  # all equal, as biases are
        for by_size in (False, True):
            plain = step_sizes(origin, list(sizes), 0.3, by_size)
            ours = our_step_sizes(torch.from_numpy(origin), sizes, 0.3, by_size)
            assert same_bits(plain, ours)


MESSAGES = [
    {"upload__bits": bits, "method__hash": hash}
    for bits in (32, 16, 8, 6, 4, 3, 2)
    for hash in ("fresh", "fixed")
] + [
    {"method__rows": 3, "method__cols": 20_000, "method__decode": "unbiased", "upload__bits": 2},
    {"method__name": "uncompressed", "upload__bits": 4},
    {"method__name": "true_topk", "method__k": 20, "upload__bits": 8},
]  # fmt: skip


@pytest.mark.parametrize("more", MESSAGES, ids=str)
def test_messages_of_equal_gradients_are_equal_bytes(more, tmp_path):
    """Packed and entropy-coded ones."""
    setup = setup_with(**more)
    write_handout(setup, tmp_path)
    agreed = Agreement.read(tmp_path)
    for vector in vectors(setup.model.dim):
        computed = Computed(torch.from_numpy(vector), 64, 0.5)
        for client, round in ((0, 0), (3, 8)):
            ours = encode(as_sent(setup, computed, client, round, None).payload)
            assert agreed.payload(vector, client, round) == ours


STEPS = [
    {"upload__quantiser": "step", "upload__tau": 0.5},
    {"upload__quantiser": "step", "upload__tau": 8.0, "method__cols": 20_000},
    {"upload__quantiser": "shared_step", "upload__density": 0.05},
    {"method__name": "uncompressed", "upload__quantiser": "shared_step", "upload__density": 2.0},
]


@pytest.mark.parametrize("more", STEPS, ids=str)
def test_messages_of_one_step_mean_the_same(more, tmp_path):
    """Tables are chosen more simply, so that bytes differ; step and levels do not."""
    setup = setup_with(**more)
    write_handout(setup, tmp_path)
    agreed = Agreement.read(tmp_path)
    for vector in vectors(setup.model.dim):
        computed = Computed(torch.from_numpy(vector), 64, 0.5)
        for client, round, size in ((0, 0, 0.0), (3, 8, 0.01)):
            ours = as_sent(setup, computed, client, round, None, size).payload
            written = agreed.payload(vector, client, round, size)
            assert reading.read(written) == reading.read(encode(ours))
            found = decode(written)
            assert found.values.step == ours.values.step
            assert same_bits(found.values.floats(), ours.values.floats())
            assert len(written) <= setup.method.message.most_bytes(setup.quantiser)


@pytest.mark.parametrize("count", [1, 64, 65, 2**18 + 100])
def test_chunks_of_all_kinds(count):
    rng = np.random.default_rng(count)
    for share in (0.0, 0.001, 0.3, 1.0) if count < 1000 else (0.001,):
        levels = np.where(rng.random(count) < share, rng.integers(-(2**40), 2**40, count), 0)
        levels[rng.random(count) < 0.5] >>= 39
        section = chunks_section(levels)
        message = writing.message(count, 5, section, 0, None)
        found = decode(message).values
        expected = np.flatnonzero(levels)
        assert found.indices.tolist() == expected.tolist()
        assert found.values.tolist() == levels[expected].tolist()


def federation(folder, plain, **more):
    """Four clients, of which some are plain."""
    given = {"settings": "schedule.kind=constant schedule.peak=0.05 download.step=0.0625"}
    given |= {"upload.bits": 4, "download.grid": "steps", "train.epochs": 3.0}
    given |= TASK | {"method.name": "fetchsgd", "method.k": 200, "method.cols": 400}
    given |= {name.replace("__", "."): value for name, value in more.items()}
    given |= {"federation.out": str(folder / "run")}
    grid = FakeGrid(given)
    settings, ours = read_settings(given)
    write_handout(Setup(settings, ours.clients), folder / "handout")
    for client in range(4):
        if client in plain:
            grid.add(client, config={"handout": str(folder / "handout")}, program=client_app)
        else:
            grid.add(client)
    return grid


def held(grid, node):
    """Version and vector that a client keeps."""
    state = grid.nodes[node].context.state
    is_plain = "plain.about" in state.config_records
    about = state.config_records["plain.about" if is_plain else "fetchsgd.about"]
    arrays = state.array_records["plain.held" if is_plain else "fetchsgd.vectors"]
    return about["version"], arrays["vector" if is_plain else "held"].numpy()


CASES = [
    {},
    {
        "upload__bits": 16,
        "method__hash": "fixed",
        "download__grid": "float16",
        "settings": "schedule.peak=0.05",
    },
    {"method__name": "true_topk", "upload__bits": 2, "train__averaging": "examples"},
    {"upload__quantiser": "shared_step", "upload__density": 1.0},
]


@pytest.mark.parametrize("more", CASES, ids=str)
def test_with_plain_clients_a_federation_has_the_same_weights_to_the_bit(more, tmp_path):
    if more.get("download__grid", "steps") != "steps":  # gradients are then exact no longer
        plain, tolerance = [2], {"rtol": 1e-4, "atol": 1e-6}
    else:
        plain, tolerance = [0, 2], {"rtol": 0, "atol": 0}
    grid = federation(tmp_path / "mixed", plain, **more)
    result = train(grid)
    expected = train(federation(tmp_path / "ours", [], **more))
    assert counts(result)["replies"] == counts(expected)["replies"] == 12
    assert counts(result)["failed"] == counts(result)["resent"] == 0
    torch.testing.assert_close(
        weights(tmp_path / "mixed/run"), weights(tmp_path / "ours/run"), **tolerance
    )
    # All hold the weights with which the last round began.
    (version, ours), *others = (held(grid, node) for node in (101, 100, 102, 103))
    assert version == 2
    assert all(v == version and same_bits(vector, ours) for v, vector in others)


def test_a_plain_client_that_has_lost_its_weights_asks_for_them(tmp_path):
    """One has lost everything, one holds something else than it says."""
    grid = federation(tmp_path / "mixed", [0, 2])
    asked = []

    def spoil(message, reply):
        kind = reply.content[HEADER]["kind"]
        asked.append((message.metadata.group_id, kind))
        if (message.metadata.group_id, kind) == ("1", "answer"):
            node = grid.nodes[message.metadata.dst_node_id]
            kept = client_app.load(node.context)
            if node.client == 0:
                grid.lose_state(message.metadata.dst_node_id)
            else:
                kept.held.vector[5] += 1
                client_app.save(node.context, kept)
        return reply

    for node in (100, 102):
        grid.nodes[node].behave = spoil
    result = train(grid)
    train(federation(tmp_path / "ours", []))
    assert torch.equal(weights(tmp_path / "mixed/run"), weights(tmp_path / "ours/run"))
    assert asked.count(("2", "asks")) == asked.count(("2", "answer")) == 2
    assert counts(result)["resent"] == 2


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handout")
    write_handout(setup_with(download__grid="steps"), folder)
    return Agreement.read(folder)


def never(weights):
    raise AssertionError(weights)


def work(agreed, **more):
    about = {"digest": agreed.digest, "lineage": "ab", "round": 0, "client": 1, "rate": 0.1}
    update = encode(SparseUpdate(650, torch.zeros(0).long(), Integers(torch.zeros(0).long()), 0))
    about |= {"checksum": 0, "merged": 0, "size": 0.0, "payload": update}
    return about | more


def test_what_a_plain_client_refuses(agreed):
    with pytest.raises(ValueError, match="other settings or initial weights"):
        answer(agreed, work(agreed, digest="0" * 32), 1, None, never)
    with pytest.raises(ValueError, match="are not the server's"):
        answer(agreed, work(agreed), 1, None, never)
    later = bytearray(work(agreed)["payload"])
    later[4] = 2
    both = "in version 2 of the wire format, and this side speaks version 1"
    with pytest.raises(ValueError, match=both):
        answer(agreed, work(agreed, payload=bytes(later)), 1, None, never)


def test_what_a_plain_client_answers_ours_would_read(agreed):
    right = checksum(agreed.grid.origin)

    def compute(weights):
        return weights, 0.5, 64

    kind, reply, kept = answer(agreed, work(agreed, checksum=right), 1, None, compute)
    found = from_records(envelope.packed(kind, reply.pop("payload"), **reply), Answer)
    assert (found.client, found.examples, found.loss) == (1, 64, 0.5)
    assert (kept.lineage, kept.held.version) == ("ab", 0)
    # The same version of another run is nothing.
    update = SparseUpdate(650, torch.tensor([3]), Integers(torch.tensor([2])), 9, 7)
    later = work(agreed, lineage="cd", round=9, payload=encode(update))
    kind, reply, kept = answer(agreed, later, 1, Kept("ab", Held(7, kept.held.vector)), never)
    assert from_records(envelope.packed(kind, **reply), ResendRequest).held == 0


@pytest.mark.parametrize("name", ["protocol", "wire"])
def test_both_sides_refuse_another_version_and_name_both(name, tmp_path, caplog):
    """A client of a later version meets our server, and our server's later messages a client."""
    grid = federation(tmp_path, [1])

    def of_later_version(message, reply):
        header = reply.content[HEADER]
        header[name] += 1
        with pytest.raises(ValueError, match=f"version {header[name]} of .* speaks version"):
            envelope.unpacked(reply.content, header["kind"])
        return reply

    grid.nodes[101].behave = of_later_version
    grid.nodes[103].behave = of_later_version
    with caplog.at_level("WARNING"):
        result = train(grid)
    assert counts(result)["rejected_header"] >= 2
    assert counts(result)["replies"] == 6
    ours = {"protocol": PROTOCOL, "wire": WIRE_FORMAT}[name]
    for node in (101, 103):
        sentence = f"node {node} does not say who it is: the message is in version {ours + 1} of"
        assert sentence in caplog.text


def test_the_handout_is_written_by_a_command(tmp_path, monkeypatch, capsys):
    app = Path(__file__).parents[2] / "examples" / "plain_client"
    words = ["handout", str(app), "--out", str(tmp_path), "--run-config", "train.seed=3"]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("sys.path", list(sys.path))
    handout.main()
    found = Agreement.read(tmp_path)
    assert found.digest in capsys.readouterr().out
    assert found.settings["train"]["seed"] == 3
    assert digest(handout.setup_of(app, ["train.seed=3"])) == found.digest
    monkeypatch.setattr("sys.argv", [*words[:-1], "train.epochs=-1.0"])
    with pytest.raises(SystemExit, match="error: train.epochs"):
        handout.main()
