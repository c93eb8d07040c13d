"""docs/protocol.md against the library, and against the client that was written from it."""

import hashlib
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")
pytest.importorskip("cryptography", reason="it is not installed: pip install 'fetchsgd[secure]'")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from plain_client import envelope, rounding, seeds
from plain_client.client import Agreement, checksum
from plain_client.weights import Grid, Held
from plain_client.weights import step_sizes as plain_step_sizes

from fetchsgd.exchange import messages
from fetchsgd.exchange.agreement import checksum as our_checksum
from fetchsgd.exchange.frames import from_frame, to_frame
from fetchsgd.exchange.merging import Accepted, RunningMean
from fetchsgd.flower.proofs import check_proof, proven
from fetchsgd.flower.protocol import HEADER, from_records, to_records
from fetchsgd.methods import DenseMessage
from fetchsgd.methods.messages.base import Reply
from fetchsgd.quantisers import SharedStep
from fetchsgd.quantisers.kernels.reference import random_words
from fetchsgd.quantisers.levels import Rounding, quantise, round_to_bfloat16
from fetchsgd.quantisers.steps import rms_steps, round_to_steps
from fetchsgd.randomness import PURPOSES, number
from fetchsgd.server.grids import HeldVersion, StepGrid
from fetchsgd.versions import FRAMES, PROTOCOL, WIRE_FORMAT
from fetchsgd.wire import Integers, SparseUpdate

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FOUND = re.findall(r"^\*\*Vector: (\w+)\*\*\n\n```json\n(.*?)```", PAGE, re.M | re.S)
VECTORS = {name: json.loads(text) for name, text in FOUND}
KINDS = {kind.kind: kind for kind in vars(messages).values() if hasattr(kind, "kind")}
BYTES = ("challenge", "signature")


def floats(text):
    return np.frombuffer(bytes.fromhex(text), "<f4")


def tensor(text):
    return torch.from_numpy(floats(text).copy())


def digits(array):
    return np.asarray(array, "<f4").tobytes().hex()


def test_no_vector_of_the_page_is_left_out():
    tested = re.findall(r'VECTORS\["(\w+)"\]', Path(__file__).read_text())
    assert set(VECTORS) == set(tested)
    assert len(VECTORS) == PAGE.count("**Vector")


def test_digest(tmp_path):
    given = VECTORS["digest"]
    everything = given["settings.json"].encode() + bytes.fromhex(given["origin.f32"])
    assert hashlib.sha256(everything).hexdigest()[:32] == given["digest"]
    settings = json.loads(given["settings.json"])
    assert json.dumps(settings, sort_keys=True) == given["settings.json"]
    settings["local"] = {"epochs": 0, "clip": 0.0}
    settings["train"]["weight_decay"] = 0.0
    text = json.dumps(settings).encode()
    for name, data in {"settings.json": text, "origin.f32": everything[-24:]}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "tensors.json").write_text(
        '[{"name": "w", "shape": [2, 2]}, {"name": "b", "shape": [2]}]'
    )
    found = Agreement.read(tmp_path)
    assert found.digest == hashlib.sha256(text + everything[-24:]).hexdigest()[:32]
    assert found.grid.steps.tolist() == [0.25] * 6


def test_envelope():
    """Ours reads what the page has and writes it again; so does the plain client."""
    assert {header["kind"] for header in VECTORS["envelope"]} == set(envelope.FIELDS)
    for header in VECTORS["envelope"]:
        values = {k: bytes.fromhex(v) if k in BYTES else v for k, v in header.items()}
        kind = KINDS[values["kind"]]
        own = {name: values[name] for name in envelope.FIELDS[kind.kind]}
        payload = b"x" if "payload" in kind.__dataclass_fields__ else None
        records = envelope.packed(kind.kind, payload, **own)
        assert dict(records[HEADER]) == values
        content = from_records(records, kind)
        assert dict(to_records(content)[HEADER]) == values
        found = envelope.unpacked(to_records(content), kind.kind)
        assert found == own | ({} if payload is None else {"payload": payload})


def test_versions():
    assert re.search(r"\| `protocol` \| int \| (\d+) \|", PAGE).group(1) == str(PROTOCOL)
    assert re.search(r"`wire` \| int \| .*?(\d+) \|", PAGE).group(1) == str(WIRE_FORMAT)
    assert re.search(r"`FSX`, a `u8` version, (\d+)", PAGE).group(1) == str(FRAMES)


def test_proof():
    given = VECTORS["proof"]
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["private"]))
    greeting = messages.Greeting(given["lineage"], bytes.fromhex(given["challenge"]))
    hello = messages.Hello(given["held_lineage"], given["client"], given["held"])
    hello = proven(hello, greeting, given["node"], key)
    assert hello.signature.hex() == given["signature"]
    assert key.sign(bytes.fromhex(given["signed"])).hex() == given["signature"]
    check_proof(hello, greeting, given["node"], {2: bytes.fromhex(given["public"])})
    parts = ["fetchsgd flower hello", str(PROTOCOL), given["lineage"], greeting.challenge]
    parts += [str(given["node"]), str(given["client"]), given["held_lineage"], str(given["held"])]
    data = [part if isinstance(part, bytes) else part.encode() for part in parts]
    signed = b"".join(len(part).to_bytes(8, "little") + part for part in data)
    assert signed.hex() == given["signed"]


def test_weights():
    given = VECTORS["weights"]
    origin, sizes = tensor(given["origin"]), given["sizes"]
    grid = StepGrid(tuple(sizes), origin, given["step"])
    assert digits(grid.tensor_steps) == given["steps"]
    n = torch.tensor(given["n"])
    moved = n.nonzero().squeeze(1)
    update = SparseUpdate(len(n), moved, Integers(n[moved]), 1)
    held, found = grid.receive(HeldVersion(0, torch.zeros(len(n), dtype=torch.int32)), update)
    assert held.vector.tolist() == given["n"]
    assert digits(found) == given["weights"]
    assert our_checksum(found) == given["checksum"]
    steps = plain_step_sizes(origin.numpy(), sizes, given["step"])
    assert digits(steps) == given["steps"]
    by_size = plain_step_sizes(origin.numpy(), sizes, given["step"], by_size=True)
    assert digits(by_size) == given["steps_by_size"]
    assert digits(replace(grid, by_size=True).tensor_steps) == given["steps_by_size"]
    plain = Grid(origin.numpy(), np.repeat(steps, sizes))
    found = plain.weights(Held(1, np.array(given["n"], np.int32)))
    assert (digits(found), checksum(found)) == (given["weights"], given["checksum"])


def test_keys():
    for given in VECTORS["keys"]:
        seed, purpose, round = given["seed"], given["purpose"], given["round"]
        assert number(seed, PURPOSES[purpose], round) == given["key"]
        assert seeds.round_key(seed, purpose, round) == given["key"]


def test_words():
    for given in VECTORS["words"]:
        run, place = given["run"], given["place"]
        ours = random_words(torch.tensor([given["stream"]]), run + 1, given["key"])
        assert int(ours[0, run, place]) == given["word"]
        plain = seeds.random_words(given["key"], given["stream"], run + 1)
        assert int(plain[run, place]) == given["word"]


def test_bfloat16():
    given = VECTORS["bfloat16"]
    key, client, cells = given["key"], given["client"], floats(given["cells"])
    ours = round_to_bfloat16(tensor(given["cells"])[None], key, torch.tensor([client]))
    assert digits(ours) == given["rounded"]
    assert digits(rounding.to_bfloat16(cells, key, client)) == given["rounded"]


def test_levels():
    assert {given["bits"] for given in VECTORS["levels"]} == {2, 4, 8}
    for given in VECTORS["levels"]:
        key, client, bits = given["key"], given["client"], given["bits"]
        ours = quantise(tensor(given["cells"]), bits, Rounding(key, client))
        plain = rounding.to_levels(floats(given["cells"]), bits, key, client)
        for found in (ours, plain):
            assert digits(found.scales) == given["scales"]
            assert digits(found.floats()) == given["worth"]
        assert plain.levels.ravel()[: plain.count].tolist() == given["levels"]


def test_step():
    given = VECTORS["step"]
    key, client, cells = given["key"], given["client"], floats(given["cells"])
    rows = tensor(given["cells"])[None]
    steps = rms_steps(rows, given["tau"])
    assert float(steps) == float(rounding.rms_step(cells, given["tau"])) == given["step"]
    ours = round_to_steps(rows, steps, key, torch.tensor([client]))
    assert ours.levels[0].tolist() == given["levels"]
    plain = rounding.to_steps(cells, np.float32(given["step"]), key, client)
    assert plain.levels.tolist() == given["levels"]
    for size, step in given["sizes"].items():
        shared = SharedStep(given["density"]).for_size(float(size))
        assert float(shared.round_rows(rows, key, torch.tensor([client])).steps) == step
        assert float(rounding.shared_step(cells, given["density"], float(size))) == step


def test_mean():
    given = VECTORS["mean"]
    rows = [tensor(text) for text in given["numbers"]]
    total = RunningMean(DenseMessage(len(rows[0])), torch.device("cpu"))
    for client, (row, weight) in enumerate(zip(rows, given["weights"], strict=True)):
        total.add(client, Accepted(Reply(row, len(row)), float(weight), weight, 0.0, 0.0, 0.0))
    assert digits(total.mean) == given["mean"]


def test_frames():
    headers = {header["kind"]: header for header in VECTORS["envelope"]}
    assert set(VECTORS["frames"]) == {"work", "answer", "asks"}
    for kind, text in VECTORS["frames"].items():
        content = from_frame(bytes.fromhex(text), KINDS[kind])
        assert to_frame(content).hex() == text
        expected = {k: v for k, v in headers[kind].items() if k not in ("protocol", "wire", "kind")}
        assert {k: v for k, v in vars(content).items() if k != "payload"} == expected
        assert getattr(content, "payload", b"\x00\xff") == b"\x00\xff"
        assert zlib.crc32(bytes.fromhex(text)[9:]) == int.from_bytes(
            bytes.fromhex(text)[5:9], "little"
        )
