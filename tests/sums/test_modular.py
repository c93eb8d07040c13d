"""Sums modulo 2^b: what clients send, what the server reads, and that both are exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd.methods.messages import DenseMessage, Upload
from fetchsgd.sums import Modular, level_rows
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.residues import Residues
from fetchsgd.wire import DenseVector, MismatchError, decode, encode

COUNT, CLIENTS = 700, 12


def vectors(n=CLIENTS, count=COUNT, seed=0):
    return torch.randn(n, count, generator=torch.Generator().manual_seed(seed))


def quantiser(bits=8, step=0.2, **options):
    return Modular(sum_bits=bits, **options).for_round(99, step, CLIENTS)


@pytest.mark.parametrize("bits", [4, 7, 8, 16])
@given(clients=st.permutations(range(6)), weights=st.lists(st.integers(1, 50), min_size=6))
@settings(max_examples=5, deadline=None)
def test_messages_in_any_order_add_up_to_what_a_simulation_sums(bits, clients, weights):
    """Each client alone, through bytes, modulo 2^b, against the cohort in whole numbers."""
    rows, examples = vectors(6) / 50, torch.tensor(weights[:6])
    together = quantiser(bits).weighing(examples).round_rows(rows, 5, torch.arange(6))
    total, weight = torch.zeros(together.layout.cells, dtype=torch.int64), 0
    for client in clients:
        alone = quantiser(bits).weighing(examples[client : client + 1])
        upload = Upload(alone, 5, 3)
        payload = DenseMessage(COUNT).write(rows[client], None, client, 3, upload)
        values = decode(encode(payload)).values
        assert isinstance(values, Residues)
        total, weight = (total + values.cells) % (1 << bits), weight + values.weight
    by_simulation = quantiser(bits).open(together.sum(), int(examples.sum()), together.layout)
    by_server = quantiser(bits).open(total, weight, together.layout)
    assert torch.equal(by_simulation.mean, by_server.mean)
    assert torch.equal(by_simulation.seen.next_step, by_server.seen.next_step)


def test_the_mean_is_right_and_weighted():
    rows, examples = vectors(), torch.arange(1, CLIENTS + 1)
    fine = Modular(sum_bits=16, sum_clip=1).for_round(1, 0.01, CLIENTS).weighing(examples)
    sent = fine.round_rows(rows, 5, torch.arange(CLIENTS))
    mean = fine.open(sent.sum(), int(examples.sum()), sent.layout).mean
    expected = (examples[:, None] * rows).sum(dim=0) / examples.sum()
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.005)
    torch.testing.assert_close(sent.dequantise(), rows, rtol=0, atol=0.05)


def test_rounding_is_unbiased():
    row = vectors(1, 256)
    sum = torch.zeros(256)
    for key in range(200):
        sum += (
            quantiser(step=1.0, sum_clip=1).round_rows(row, key, torch.tensor([0])).dequantise()[0]
        )
    # At most 1/2 of standard deviation each, and 256 cells: six of them once in 2e6.
    assert (sum / 200 - row[0]).abs().max() < 6 * 0.5 / 14.1


def test_no_client_adds_more_than_its_clip():
    for bits, clip in ((4, 4), (8, 73)):
        sent = quantiser(bits, 1e-3).round_rows(1e6 * vectors(), 5, torch.arange(CLIENTS))
        assert sent.levels.abs().max() == clip
        assert sent.clipped > 0.9 * sent.levels.numel()


def test_not_even_by_a_rounded_step():
    """The inverse of a step is rounded too: clip * step * (1 / step) may be above the clip."""
    for step in (0.1, 0.3, 1 / 3, 0.7, 1e-3):
        fine = quantiser(15, step, sum_clip=1)
        sent = fine.round_rows(1e9 * vectors(), 5, torch.arange(CLIENTS))
        assert sent.levels.abs().max() == fine.clip == 2**14 - 1


def test_a_client_among_very_many_still_adds_a_level():
    assert Modular(sum_bits=4).for_round(1, 0.1, 10_000).clip == 1


def test_where_no_step_is_known_the_first_is_taken():
    for nothing in (None, 0, 0.0):
        assert Modular(first_step=0.5).for_round(1, nothing, 9).step == 0.5
        assert Modular(first_step=0.5, sum_step=2.0).for_round(1, nothing, 9).step == 2.0
    assert Modular(first_step=0.5).for_round(1, 0.25, 9).step == 0.25


def test_large_cohorts_are_summed_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(level_rows, "EXACT_ROWS", 5)
    sent = quantiser().round_rows(vectors(), 5, torch.arange(CLIENTS))
    assert torch.equal(sent.sum(), sent.levels.long().sum(dim=0))


def test_what_is_not_finite_is_sent_as_zeros():
    rows = vectors()
    rows[3, 7] = float("nan")
    sent = quantiser().round_rows(rows, 5, torch.arange(CLIENTS))
    hit = sent.levels[3].view(sent.layout.block, -1)[:, 7 % sent.layout.blocks]
    assert not hit.any()


def test_wraps_are_counted_exactly():
    layout = Layout.of(256)
    levels = torch.zeros(256, dtype=torch.int64)
    levels[:5] = torch.tensor([127, 128, -128, -129, 1000])
    opened = quantiser().open(levels, 1, layout)
    assert int(opened.wraps) == 3
    assert quantiser().centred(levels)[:5].tolist() == [127, -128, -128, 127, -24]


class TestOnTheWire:
    @pytest.mark.parametrize("bits", range(4, 17))
    def test_sizes_are_as_predicted(self, bits):
        values = quantiser(bits).round_rows(vectors(1), 5, torch.tensor([3])).row(0)
        message = encode(DenseVector(values, 2))
        assert len(message) == 64 + quantiser(bits).fixed_bytes(COUNT)
        again = decode(message).values
        assert torch.equal(again.cells, values.cells)
        assert (again.step, again.key, again.weight) == (values.step, values.key, values.weight)

    def test_another_number_of_bits_is_refused(self):
        values = quantiser(6).round_rows(vectors(1), 5, torch.tensor([3])).row(0)
        message, other = DenseMessage(COUNT), Modular(sum_bits=8)
        with pytest.raises(MismatchError, match="not written by"):
            decode(encode(DenseVector(values, 2)), lambda head: message.check(head, 2, other))

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"step": 0.0}, "step"),
            ({"step": float("nan")}, "step"),
            ({"weight": 1 << 32}, "weight"),
            ({"key": -1}, "key"),
            ({"bits": 3}, "4 to 16"),
            ({"cells": torch.full((768,), 256, dtype=torch.int32)}, "below 256"),
            ({"cells": torch.zeros(5, dtype=torch.int32)}, "whole blocks"),
        ],
    )
    def test_what_is_no_message_is_not_written(self, change, sentence):
        values = quantiser().round_rows(vectors(1), 5, torch.tensor([3])).row(0)
        fields = {name: getattr(values, name) for name in values.__dataclass_fields__}
        with pytest.raises(ValueError, match=sentence):
            encode(DenseVector(Residues(**fields | change)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sum_bits": 3}, "sum_bits must be from 4 to 16, got 3"),
        ({"sum_bits": 17}, "sum_bits"),
        ({"wrap_probability": 0.0}, "wrap_probability must be from 1e-12 to 0.1"),
        ({"first_step": 0.0}, "first_step must be a step such as 0.001"),
        ({"sum_step": -1.0}, "sum_step"),
        ({"colluding": 0.5}, "colluding must be a part of the clients"),
        ({"dropping": -0.1}, "dropping must be a part of the clients"),
        ({"security_bits": 0}, "security_bits must be from 1 to 128"),
        ({"sum_clip": 2.0}, "sum_clip must be from 0 to 1"),
    ],
)
def test_options_that_make_no_sense_get_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Modular(**options)
