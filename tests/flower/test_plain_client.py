"""The client of examples/plain_client, which knows neither fetchsgd nor torch, against ours."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import FakeGrid
from flower.federations import counts, train, weights
from plain_client import client_app, envelope, rounding, seeds
from plain_client.client import Agreement, Kept, answer, checksum
from plain_client.sketching import Sketch, block_of
from plain_client.weights import Held, step_sizes

from fetchsgd.exchange.client import Computed, as_sent
from fetchsgd.exchange.messages import Work
from fetchsgd.flower.handout import write_handout
from fetchsgd.flower.protocol import HEADER, to_records
from fetchsgd.flower.settings import read_settings
from fetchsgd.methods.fetchsgd import SAFE_BLOCK
from fetchsgd.quantisers.levels import Rounding, quantise, round_to_bfloat16
from fetchsgd.quantisers.steps import rms_steps, round_to_steps
from fetchsgd.randomness import PURPOSES, number
from fetchsgd.runs.setup import Setup
from fetchsgd.server.grids.steps import step_sizes as our_step_sizes
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.count_sketch import default_block
from fetchsgd.wire import encode

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
            assert rounding.to_steps(vector, steps.numpy()[0], key, client).tolist() == ours.tolist()


@pytest.mark.parametrize("hash", ["blocks", "permutation"])
@pytest.mark.parametrize(("rows", "cols", "block"), [(1, 100, 1), (2, 40, 4), (1, 7, 2), (3, 6000, 8)])
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
        plain = step_sizes(origin, list(sizes), 0.3)
        assert same_bits(plain, our_step_sizes(torch.from_numpy(origin), sizes, 0.3))


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
