"""Matrices of low rank: nothing is lost, ranks read alike, and enough columns say everything."""

import pytest
import torch

from fetchsgd.ddp import LowRankState
from fetchsgd.ddp.layout import Layout, Piece, of_pieces
from fetchsgd.ddp.low_rank import LowRankBucket, Shape, grouped, is_worth_it, orthogonal
from fetchsgd.errors import UserError

# Two matrices of one shape, one of another, and a vector between them.
WIDE = (
    Piece("a", 0, 600, torch.Size([20, 30])),
    Piece("b", 610, 600, torch.Size([20, 30])),
    Piece("c", 1210, 480, torch.Size([12, 10, 4])),
)
LAYOUT = Layout(WIDE, (Piece("d", 600, 10, torch.Size([10])),))
LENGTH, WORLD = 1690, 3


def ranks(rank=2, bits=8, world=WORLD):
    return [
        LowRankBucket(LAYOUT, rank, bits, place, world, torch.device("cpu"))
        for place in range(world)
    ]


def summed(messages):
    return [torch.stack(each).sum(0, dtype=each[0].dtype) for each in zip(*messages, strict=True)]


def exchanged(buckets, gradients, step):
    """What each rank reads."""
    buffers = [gradient.clone() for gradient in gradients]
    pairs = zip(buckets, buffers, strict=True)
    left = summed([bucket.first(buffer, 2 * step) for bucket, buffer in pairs])
    right = summed([bucket.second(left, 2 * step + 1) for bucket in buckets])
    return [bucket.finish(right) for bucket in buckets]


def kept(bucket):
    """Its errors, each where its tensor is in the bucket."""
    found = torch.zeros(LENGTH)
    if bucket.errors is not None:
        parts = torch.split(bucket.errors, [piece.size for piece in bucket.pieces])
        for place, error in zip(of_pieces(found, bucket.pieces), parts, strict=True):
            place.copy_(error)
    return found


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_what_is_not_said_waits(bits, generator):
    buckets = ranks(bits=bits)
    for step in range(5):
        gradients = torch.randn(WORLD, LENGTH, generator=generator)
        before = torch.stack([kept(bucket) for bucket in buckets])
        said = exchanged(buckets, gradients, step)
        after = torch.stack([kept(bucket) for bucket in buckets])
        assert all(one.equal(said[0]) for one in said)
        # The vector is sent as it is, in bfloat16 once there are levels.
        assert torch.allclose(said[0], (gradients + before - after).mean(0), atol=2e-2)
        wide = torch.cat(of_pieces(said[0] - (gradients + before - after).mean(0), WIDE))
        assert wide.abs().max() < 1e-5


def test_a_matrix_of_that_rank_is_said_in_a_few_steps(generator):
    """The same gradient again and again, of rank 2: the error goes to nothing but rounding."""
    u, v = torch.randn(20, 2, generator=generator), torch.randn(30, 2, generator=generator)
    gradients = torch.zeros(WORLD, LENGTH)
    for piece in WIDE[:2]:
        gradients[:, piece.start : piece.start + piece.size] = (u @ v.T).flatten()
    buckets = ranks(bits=16)
    for step in range(6):
        said = exchanged(buckets, gradients, step)[0]
    assert (said - gradients[0]).norm() < 1e-2 * gradients[0].norm()


def test_what_is_not_finite_reaches_all_ranks_and_no_memory(generator):
    buckets = ranks()
    for step in range(3):
        exchanged(buckets, torch.randn(WORLD, LENGTH, generator=generator), step)
    before = [kept(bucket) for bucket in buckets]
    steps = [bucket.said_left.step.clone() for bucket in buckets]
    gradients = torch.randn(WORLD, LENGTH, generator=generator)
    gradients[1, 5] = torch.inf
    assert all(bool(one.isnan().all()) for one in exchanged(buckets, gradients, 3))
    assert all(kept(bucket).equal(one) for bucket, one in zip(buckets, before, strict=True))
    assert [bucket.said_left.step for bucket in buckets] == steps
    later = exchanged(buckets, torch.randn(WORLD, LENGTH, generator=generator), 4)
    assert all(bool(one.isfinite().all()) for one in later)


def test_columns_become_orthogonal(generator):
    before = torch.randn(4, 50, 5, generator=generator)
    before[2:, 9:] = 0  # shorter ones
    columns = orthogonal(before)
    assert torch.allclose(columns.mT @ columns, torch.eye(5).expand(4, 5, 5), atol=1e-5)
    # They span what they did before.
    assert torch.allclose(columns @ (columns.mT @ before), before, atol=1e-4)
    assert not columns[2:, 9:].any()
    assert not orthogonal(torch.zeros(1, 5, 2)).any()


def test_factors_of_all_shapes_are_one_tensor_with_zeros_that_are_not_sent(generator):
    shape = Shape(grouped(WIDE), 0, 2, torch.device("cpu"))
    parts = [torch.randn(2, 20, 2, generator=generator), torch.randn(1, 12, 2, generator=generator)]
    columns = shape.together(parts)
    assert columns.shape == (3, 20, 2)
    assert not columns[2, 12:].any()
    vector = shape.sent(columns)
    assert vector.equal(torch.cat([part.flatten() for part in parts]))
    assert shape.received(vector).equal(columns)
    assert all(one.equal(two) for one, two in zip(shape.parts(columns), parts, strict=True))


def test_which_tensors_are_worth_it():
    assert is_worth_it(torch.Size([100, 100]), 4)
    assert is_worth_it(torch.Size([64, 32, 3, 3]), 4)
    assert not is_worth_it(torch.Size([100, 100]), 25)
    assert not is_worth_it(torch.Size([10_000]), 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "rank must be from 1 to 4096, got 0"),
        ({"cells": "float32"}, "cells must be one of int16, int8, int4, got 'float32'"),
        ({"start_iter": -1}, "start_iter must be from 0"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(UserError, match=words):
        LowRankState(torch.nn.Linear(3, 3), **options)
