"""Which replies are believed: bounds that follow what most clients send."""

import math
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.flower.admission import ENOUGH, LOSS_FACTOR, ROUNDS, Admission, Claim
from fetchsgd.flower.events import Events
from fetchsgd.flower.patience import Patience
from fetchsgd.flower.remembered import Remembered

FACTOR = 10.0


def admission(references=None):
    return Admission(FACTOR, FACTOR, references)


def claims(norms, examples=5, loss=1.0):
    return [Claim(client, norm, examples, loss) for client, norm in enumerate(norms)]


def play(judge, round, scale=1.0):
    """A whole round: the decisions on all replies, in the order in which they come."""
    judge.open_round(scale)
    decisions = []
    for claim in round:
        judge.submit(claim)
        decisions += judge.decide()
    decisions += judge.decide(is_closing=True)
    judge.close_round(1.0)
    return {decision.claim.client: decision for decision in decisions}


def rejected(decisions):
    return {client for client, decision in decisions.items() if decision.rejected}


honest_norms = st.floats(1.0, FACTOR)
lies = st.floats(FACTOR**2 * 1.01, 1e300)


@given(st.lists(st.lists(honest_norms, min_size=1, max_size=7), min_size=1, max_size=15))
def test_replies_within_a_factor_of_each_other_are_all_accepted(rounds):
    judge = admission()
    for norms in rounds:
        assert not rejected(play(judge, claims(norms)))


@given(st.data())
def test_a_minority_of_lies_is_rejected_wherever_it_stands(data):
    """In the first round and in all that follow, and no honest reply is."""
    judge = admission()
    for _ in range(data.draw(st.integers(1, 4))):
        honest = data.draw(st.lists(honest_norms, min_size=4, max_size=8))
        wrong = data.draw(st.lists(lies, max_size=1))  # at most one among the first three
        liar = data.draw(st.integers(0, len(honest)))
        norms = honest[:liar] + wrong + honest[liar:]
        decisions = play(judge, claims(norms))
        assert rejected(decisions) == ({liar} if wrong else set())
        assert sorted(decisions) == list(range(len(norms)))  # everybody is told


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 6))
def test_every_reply_is_decided_on_once(norms, per_round):
    judge = admission()
    for start in range(0, len(norms), per_round):
        part = claims(norms[start : start + per_round])
        assert sorted(play(judge, part)) == [claim.client for claim in part]


def test_the_first_replies_are_held_back_until_there_are_three():
    judge = admission()
    judge.open_round(1.0)
    decided = []
    for claim in claims([1e6, 1.0, 2.0, 3.0]):
        judge.submit(claim)
        decided.append([decision.claim.client for decision in judge.decide()])
    assert decided == [[], [], [0, 1, 2], [3]]


def test_with_two_clients_the_shorter_reply_is_the_measure():
    assert rejected(play(admission(), claims([1e6, 1.0]))) == {0}


def test_a_client_counts_once_in_a_round():
    judge = admission()
    judge.open_round(1.0)
    for norm in (1e6, 1e6, 1e6):
        judge.submit(Claim(0, norm, 1, 1.0))
    judge.submit(Claim(1, 1.0, 1, 1.0))
    judge.submit(Claim(2, 1.0, 1, 1.0))
    assert {d.claim.client: bool(d.rejected) for d in judge.decide()} == {
        0: True, 1: False, 2: False,
    }  # fmt: skip


def test_late_in_training_a_long_reply_is_honest():
    """Most gradients have become tiny, and that of one client is as at the beginning."""
    judge = admission()
    play(judge, claims([1.0] * 5))
    for _ in range(3 * ROUNDS):
        assert not rejected(play(judge, claims([1e-6] * 5)))
    assert not rejected(play(judge, claims([1e-6, 9.0, 1e-6])))
    assert rejected(play(judge, claims([1e-6, 11.0, 1e-6]))) == {1}


def test_norms_are_compared_at_the_same_learning_rate():
    judge = admission()
    for rate in (0.001, 0.1, 10.0):
        assert not rejected(play(judge, claims([rate, 2 * rate, 3 * rate]), scale=rate))
    assert rejected(play(judge, claims([0.001, 0.1]), scale=0.001)) == {1}


def test_at_a_learning_rate_of_zero_there_is_nothing_to_send():
    judge = admission()
    assert rejected(play(judge, claims([0.0, 1.0, 0.0]), scale=0.0)) == {1}
    assert not rejected(play(judge, claims([3.0, 1.0, 2.0])))


def test_zeros_do_not_make_everything_else_a_lie():
    judge = admission()
    assert not rejected(play(judge, claims([0.0, 0.0, 0.0])))
    assert not rejected(play(judge, claims([0.0, 0.0, 1.0])))


def test_without_a_factor_there_is_no_bound():
    judge = Admission(0.0, 0.0)
    decisions = play(judge, claims([1.0, 1.0, 1e30], examples=7))
    assert not rejected(decisions)
    assert all(decision.examples == 7 for decision in decisions.values())


@given(st.lists(st.integers(1, 20), min_size=2, max_size=10), st.integers(1000, 10**6))
def test_a_claim_counts_as_at_most_a_factor_times_the_median(honest, claimed):
    examples = [claimed, *honest]
    round = [Claim(client, 1.0, n, 1.0) for client, n in enumerate(examples)]
    decisions = play(admission(), round)
    first = sorted(examples[:ENOUGH])[1]
    assert decisions[0].examples == min(claimed, FACTOR * first)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_loss_is_bounded_by_those_of_others(claimed):
    round = [Claim(0, 1.0, 1, claimed), Claim(1, 1.0, 1, 2.0), Claim(2, 1.0, 1, 1.0)]
    decisions = play(admission(), round)
    most = LOSS_FACTOR * (1 + median_low(sorted([abs(claimed), 2.0, 1.0])))
    assert abs(decisions[0].loss) <= most <= LOSS_FACTOR * 3
    assert decisions[1].loss == 2.0
    if abs(claimed) <= LOSS_FACTOR:
        assert decisions[0].loss == claimed


def test_even_where_most_lie_losses_can_be_added_up():
    decisions = play(admission(), claims([1.0] * 3, loss=1e308))
    assert 1e6 * sum(decision.loss for decision in decisions.values()) < 3.4e38


def test_two_liars_in_a_small_round_do_not_make_a_run_look_diverged():
    judge = admission()
    play(judge, claims([1.0] * 4, loss=2.0))
    play(judge, [Claim(0, 1.0, 1, 1e308), Claim(1, 1.0, 1, 1e308)])
    assert judge.typical_loss == 2.0
    for _ in range(ROUNDS):
        play(judge, claims([1.0] * 4, loss=-5000.0))
    assert judge.typical_loss == -5000.0


def test_a_wild_step_is_refused_and_leaves_no_trace():
    judge = admission()
    for _ in range(ENOUGH):
        play(judge, claims([1.0] * 3))
    assert judge.check_step(9.0) == ""
    assert "above 10, which is federation.norm_factor = 10" in judge.check_step(11.0)
    for bad in (math.inf, math.nan):
        assert "not finite" in judge.check_step(bad)
    judge.open_round(1.0)  # the round is asked for again
    assert judge.references["step"] == 1.0


def test_a_server_that_resumes_knows_how_the_run_began():
    judge = admission()
    for _ in range(4):
        play(judge, claims([2.0, 3.0, 4.0], examples=9))
    again = admission(judge.references)
    assert again.references == {"norm": 3.0, "examples": 9, "loss": 1.0, "step": 1.0}
    # Late in training: without references the long reply would be rejected.
    assert not rejected(play(again, claims([1e-5, 1e-5, 5.0])))
    assert rejected(play(admission(), claims([1e-5, 1e-5, 5.0]))) == {2}
    assert again.check_step(11.0)


def test_the_first_reply_after_a_restart_is_not_its_own_measure():
    again = admission({"norm": 3.0, "examples": 9, "loss": 1.0, "step": 1.0})
    again.open_round(1.0)
    again.submit(Claim(0, 1e6, 10**6, 1e308))
    again.submit(Claim(1, 1e6, 10**6, 1e308))
    for decision in again.decide():
        assert decision.rejected
        assert decision.examples == FACTOR * 9
        assert decision.loss == LOSS_FACTOR * 2


@pytest.mark.parametrize("size", [10, 1000])
def test_memory_is_bounded(size):
    judge = admission()
    for _ in range(3 * ROUNDS):
        play(judge, claims([1.0] * size))
    assert sum(map(len, judge.norms.rounds)) == ROUNDS * size


@given(st.lists(st.lists(honest_norms, min_size=1, max_size=7), min_size=2, max_size=14), st.data())
def test_a_server_that_remembers_judges_as_the_one_before(rounds, data):
    """Cut anywhere, and whatever comes next: from what is saved, and from the largest medians."""
    at = data.draw(st.integers(1, len(rounds) - 1))
    whole = admission()
    for norms in rounds[:at]:
        play(whole, claims(norms))
    resumed = admission(whole.references)
    saved = Remembered(whole, Patience(Events())).tensors()
    Remembered(resumed, Patience(Events())).restore(saved)
    for norms in rounds[at:]:
        lied = [*norms, data.draw(st.floats(1.0, FACTOR**3))]
        assert play(whole, claims(lied)) == play(resumed, claims(lied))
        assert whole.typical_loss == resumed.typical_loss
    assert whole.windows == resumed.windows
    assert whole.references == resumed.references


def test_a_server_that_remembers_is_as_patient_as_the_one_before():
    before, after = Patience(Events()), Patience(Events())
    for round in range(4):
        before.rejected(3, round)
    before.rejected(5, 2)
    saved = Remembered(admission(), before).tensors()
    Remembered(admission(), after).restore(saved)
    for patience in (before, after):
        assert [patience.may_ask(3, round) for round in range(4, 8)] == [False, False, True, True]
        assert patience.may_ask(5, 3)
        patience.rejected(5, 3)
        patience.rejected(5, 4)
        assert not patience.may_ask(5, 5)
        patience.accepted([3])
        assert patience.may_ask(3, 4)
    assert before.records == after.records
