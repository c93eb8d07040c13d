"""Liars among simulated clients: they lie as they say, and others are left alone."""

import numpy as np
import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.robust import ATTACKS, Liars
from fetchsgd.robust.attacks import Collude, Examples, Flip, Little, Noise, Replay, Scale

CLIENTS = np.arange(20)
LIES = {name: kind(share=0.3) for name, kind in ATTACKS.items() if name != "none"}


def vectors(seed=0):
    return 1 + torch.randn(20, 30, generator=torch.Generator().manual_seed(seed))


def told(attack, round=0):
    liars = Liars(attack, 20)
    return liars.who, liars.lie(vectors(), CLIENTS, round)


@pytest.mark.parametrize("name", LIES)
def test_the_share_lies_and_the_others_do_not(name):
    who, sent = told(LIES[name])
    honest = np.setdiff1d(CLIENTS, who)
    assert len(who) == 6
    assert torch.equal(sent[honest], vectors()[honest])
    if name != "replay":
        assert not any(torch.equal(sent[i], vectors()[i]) for i in who)


def test_what_is_sent_is_what_is_said():
    who, sent = told(Scale(0.3))
    torch.testing.assert_close(sent[who], 1e6 * vectors()[who])
    who, sent = told(Flip(0.3))
    assert torch.equal(sent[who], -vectors()[who])
    usual = vectors().norm(dim=1).median()
    who, sent = told(Noise(0.3))
    torch.testing.assert_close(sent[who].norm(dim=1), usual.expand(6))
    who, sent = told(Collude(0.3))
    torch.testing.assert_close(sent[who], sent[who[:1]].expand(6, -1))
    torch.testing.assert_close(sent[who].norm(dim=1), usual.expand(6))
    assert float(sent[who[0]] @ vectors().mean(0)) < 0
    who, sent = told(Little(0.3, deviations=1.0))
    wanted = vectors().mean(0) - vectors().std(0, correction=0)
    torch.testing.assert_close(sent[who[0]], wanted)


def test_noise_differs_from_round_to_round_and_follows_from_the_seed():
    who, sent = told(Noise(0.3), 1)
    assert torch.equal(sent, told(Noise(0.3), 1)[1])
    assert not torch.equal(sent[who], told(Noise(0.3), 2)[1][who])
    assert not np.array_equal(who, told(Noise(0.3, seed=1))[0])


def test_replays_are_of_the_first_round_even_after_a_restart():
    liars = Liars(Replay(0.3), 20)
    first = liars.lie(vectors(), CLIENTS, 0)[liars.who[0]]
    again = Liars(Replay(0.3), 20)
    again.restore(liars.tensors())
    sent = again.lie(vectors(1), CLIENTS, 5)
    torch.testing.assert_close(sent[again.who], first.expand(6, -1))


def test_a_claim_of_a_billion_examples_is_nearly_all_of_the_mean():
    liars = Liars(Examples(0.1), 20)
    shares = liars.claims(np.full(20, 3), CLIENTS, 0)
    assert float(shares.sum()) == pytest.approx(1)
    assert float(shares[liars.who].sum()) > 0.999999


def test_sleepers_are_honest_until_their_round():
    liars = Liars(Examples(0.3, after=5), 20)
    assert torch.equal(liars.lie(vectors(), CLIENTS, 4), vectors())
    assert not torch.equal(liars.lie(vectors(), CLIENTS, 5), vectors())
    before, then = (liars.claims(np.full(20, 3), CLIENTS, round) for round in (4, 5))
    torch.testing.assert_close(before, torch.full((20,), 0.05))
    assert float(then[liars.who].sum()) > 0.999999


def test_who_colludes_with_noise_sends_no_two_equal_vectors():
    who, sent = told(Collude(0.3, apart=0.5))
    lengths = sent[who].norm(dim=1)
    torch.testing.assert_close(lengths, vectors().norm(dim=1).median().expand(6))
    units = sent[who] / lengths[:, None]
    cosines = (units @ units.T)[~torch.eye(6, dtype=torch.bool)]
    assert 0.5 < float(cosines.min()) < float(cosines.max()) < 0.97


def test_a_share_must_leave_liars_and_honest_clients():
    with pytest.raises(UserError, match=r"attack\.share must be above 0 and below 1"):
        Flip(share=1.0)
    with pytest.raises(UserError, match="some must lie and some be honest"):
        Liars(Flip(share=0.01), 20)
