"""Nothing longer than the clip is sent, whatever a client would like to send."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.methods.messages import DenseMessage, SketchMessage, Upload
from fetchsgd.privacy import AdaptiveClip, Limit, clip
from fetchsgd.quantisers import Bits
from fetchsgd.sketch import CountSketch

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


def lengths(rows):
    return torch.linalg.vector_norm(rows.double(), dim=1)


@given(
    st.lists(st.lists(numbers, min_size=6, max_size=6), min_size=1, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_no_row_is_longer_than_the_clip(values, longest):
    rows = torch.tensor(values, dtype=torch.float32)
    clipped = clip(rows, longest)
    assert (lengths(clipped.rows) <= longest).all()
    assert clipped.rows.isfinite().all()
    usual = (lengths(rows) < 1e20) & (lengths(rows) > longest)
    assert (lengths(clipped.rows)[usual] > (1 - 1e-6) * longest).all()
    short = lengths(rows) <= longest
    assert torch.equal(clipped.rows[short], rows[short])
    assert clipped.within == short.sum()


def test_worst_cases_of_rounding_stay_below(generator):
    """Many lengths near the clip, and directions for which floats round up."""
    rows = torch.rand(2000, 50, generator=generator)
    rows *= torch.linspace(0.5, 2, 2000)[:, None]
    for longest in (0.1, 1 / 3, 1.0, 7.7):
        found = lengths(clip(rows, longest).rows)
        assert (found <= longest).all()
        assert found.max() > longest * (1 - 1e-6)


def test_a_sketch_may_be_longer_than_its_vector_and_is_clipped_itself():
    sketch = CountSketch(64, 1, 4, 0, 1, hash="permutation")
    message = SketchMessage(sketch, fresh=True)
    signs = message.at(0).estimate(torch.ones(1, 4)).sign()  # all coordinates of a cell agree
    vector = signs / signs.norm()
    rows = message.compress(vector[None]).flatten(1)
    assert lengths(rows) > 3.9 * vector.norm()
    upload = Upload(Bits(32), 0, 0, Limit(1.0, 0.5))
    sent = message.merge(vector[None], torch.full((1,), 0.5), torch.zeros(1).long(), upload, None)
    assert sent.total.norm() == pytest.approx(0.5, rel=1e-6)
    assert sent.within == 0
    own = message.write(vector, None, 0, 0, upload).values.floats()
    assert torch.allclose(0.5 * own.view(1, 4), sent.total)


def test_messages_within_the_clip_are_as_without_one(generator):
    message, vectors = DenseMessage(7), torch.randn(5, 7, generator=generator)
    shares, clients = torch.full((5,), 0.2), torch.arange(5)
    free = message.merge(vectors, shares, clients, Upload(Bits(32), 0), None)
    limited = Upload(Bits(32), 0, 0, Limit(100.0, 0.2))
    sent = message.merge(vectors, shares, clients, limited, None)
    assert torch.allclose(sent.total, free.total, atol=1e-7)
    assert (sent.numbers, sent.bytes, sent.within) == (free.numbers, free.bytes, 5)


def test_the_clip_finds_its_quantile(generator):
    sizes = torch.rand(50, generator=generator).exp()
    adaptive, longest = AdaptiveClip(0.8, 0.2, 0.5), 0.01
    for _ in range(200):
        drawn = 0.5 * float(torch.randn((), generator=generator))
        within = float((sizes <= longest).sum()) - 25 + drawn
        longest = adaptive.moved(longest, within, 50)
    assert float((sizes <= longest).float().mean()) == pytest.approx(0.8, abs=0.06)


def test_count_and_sum_together_cost_what_was_asked_for():
    """Squared sensitivities over variances add up."""
    adaptive = AdaptiveClip(0.5, 0.2, noise=2.5)
    left = adaptive.noise_of_sum(1.3)
    assert left**-2 + (0.5 / 2.5) ** 2 == pytest.approx(1.3**-2)
    assert left > 1.3
    with pytest.raises(ValueError, match="above 2.5, half the noise"):
        AdaptiveClip(0.5, 0.2, 2.5).noise_of_sum(5.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        AdaptiveClip(1.5, 0.2, math.inf)
