"""A quantiser outside the package is one file, such as this: signs, and one scale for a message."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from awkward import normal
from torch import Tensor
from wire.messages import same, subset

from fetchsgd.quantisers import Quantiser, RoundedRows
from fetchsgd.wire import (
    Coding,
    DenseVector,
    Reader,
    SketchTable,
    SparseUpdate,
    Values,
    WholeModel,
    WireError,
    decode,
    encode,
    header,
    num_bytes,
    register_section,
)
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

FORMAT = 0xF0


@dataclass(frozen=True, eq=False)
class Signs:
    """One client's message."""

    scale: float
    positive: Tensor

    @property
    def count(self) -> int:
        return len(self.positive)

    def floats(self) -> Tensor:
        return torch.where(self.positive, self.scale, -self.scale)

    def section_bytes(self) -> float:
        return float(section_bytes(self.count))

    def coding(self) -> Coding:
        return Coding(FORMAT)

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        bits = np.packbits(self.positive.cpu().numpy(), bitorder="little")
        return struct.pack("<f", self.scale) + bits.tobytes()


def section_bytes(count: int) -> int:
    return 4 + (count + 7) // 8


def read_signs(reader: Reader, format: int, count: int) -> tuple[Signs, Coding]:
    (scale,) = struct.unpack("<f", reader.take(4, "a scale"))
    packed = np.frombuffer(reader.take((count + 7) // 8, "signs"), dtype=np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    if not 0 <= scale < math.inf or bits[count:].any():
        raise WireError("a scale must be finite, and the last byte filled up with zeros")
    return Signs(scale, torch.from_numpy(bits[:count].astype(np.bool_))), Coding(format)


register_section(FORMAT, read_signs)


@dataclass(frozen=True, eq=False)
class SignRows:
    """A cohort's messages."""

    scales: Tensor
    positive: Tensor

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return weights @ self.dequantise()

    def dequantise(self) -> Tensor:
        scales = self.scales[:, None]
        return torch.where(self.positive, scales, -scales)

    def section_bytes(self) -> Tensor:
        n, count = self.positive.shape
        return torch.full((n,), float(section_bytes(count)), dtype=torch.float64)

    def row(self, index: int) -> Signs:
        return Signs(float(self.scales[index]), self.positive[index])


@dataclass(frozen=True)
class Sign:
    """Each number becomes plus or minus the largest, with the probability that keeps its mean."""

    exact = False

    def round_rows(self, rows: Tensor, key: int, clients: Tensor) -> SignRows:
        scales = rows.abs().amax(dim=1)
        draws = torch.stack([_draws(key, client, rows.shape[1]) for client in clients.tolist()])
        return SignRows(scales, (2 * draws - 1) * scales[:, None] < rows)

    def fixed_bytes(self, count: int) -> int | None:
        return section_bytes(count)

    def reads(self, format: int) -> bool:
        return format == FORMAT

    def most_bytes(self, count: int) -> int:
        return section_bytes(count)


def _draws(key: int, client: int, count: int) -> Tensor:
    rng = np.random.default_rng([key, client])
    return torch.from_numpy(rng.random(count, dtype=np.float32))


QUANTISER: Quantiser = Sign()
KEY, CLIENTS = 5, torch.tensor([3, 10**12, 0])


def sent(count=1000) -> RoundedRows:
    return QUANTISER.round_rows(normal(3, count), KEY, CLIENTS)


def payloads(count):
    values = sent(count).row(1)
    yield DenseVector(values, 3)
    yield WholeModel(values)
    yield SketchTable(2**40, 1, count, 5, 7, values)
    for dim in (count, 2 * count, 90 * count):
        indices = subset(dim, count, "random", np.random.default_rng(0))
        yield SparseUpdate(dim, indices, values, 3, 2)


@pytest.mark.parametrize("count", [1, 8, 1001])
def test_it_travels_in_every_payload(count):
    for payload in payloads(count):
        message = encode(payload)
        found, choices = parse(message)
        assert same(found, payload)
        assert write(found, choices) == message
        assert isinstance(found.values, Values)
        assert found.values.floats().equal(payload.values.floats())
        assert num_bytes(payload) == len(message)


@pytest.mark.parametrize("count", [1, 8, 20_001])
def test_its_size_is_predicted(count):
    rows = sent(count)
    for payload in payloads(count):
        size = HEADER_BYTES + float(rows.section_bytes()[1])
        assert payload.values.section_bytes() == QUANTISER.fixed_bytes(count)
        if isinstance(payload, SparseUpdate):
            places = float(position_bytes(payload.dim, torch.tensor([count]))[0])
            assert size + places == pytest.approx(len(encode(payload)), rel=0.005, abs=10)
        else:
            assert size == len(encode(payload))
            assert len(encode(payload)) - HEADER_BYTES <= QUANTISER.most_bytes(count)


def test_a_real_client_rounds_like_a_simulated_one():
    rows = normal(3, 1000)
    for i, me in enumerate(CLIENTS.tolist()):
        alone = QUANTISER.round_rows(rows[i][None], KEY, torch.tensor([me]))
        assert same(alone.row(0), sent().row(i))


def test_the_server_learns_the_mean():
    """A mean of 4000 signs is off by a tenth of the scale for less than one seed in 10^9."""
    rows = torch.tensor([[0.3, -1.0, 0.0, 0.9]]).expand(4000, 4)
    rounded = QUANTISER.round_rows(rows, KEY, torch.arange(4000))
    mean = rounded.weighted_sum(torch.full((4000,), 1 / 4000))
    torch.testing.assert_close(mean, rows[0], rtol=0, atol=0.1)


def test_the_header_tells_which_quantiser_it_is():
    seen = []
    decode(encode(next(payloads(8))), seen.append)
    assert QUANTISER.reads(seen[0].values)


def test_bytes_that_it_would_not_write_are_refused():
    head = header.Header(header.DENSE, FORMAT, 0, 0, 0, 3, 0, 0, 0, 3)
    for section in (b"", bytes(4), bytes(6), bytes(4) + b"\x08", b"\0\0\x80\x7f\0"):
        with pytest.raises(WireError):
            decode(header.write(head, [section]))
    assert decode(header.write(head, [bytes(5)])).values.count == 3
