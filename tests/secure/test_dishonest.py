"""A server that does what it likes: two stories at once, weak graphs, unknown clients, races."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from secure.rounds import DIRECTORY, Round, identity, terms_of

from fetchsgd.errors import UserError
from fetchsgd.secure import Client, Journal, Policy, RefusedError, Terms, parameters
from fetchsgd.secure.frames import Kind
from fetchsgd.secure.messages import write_invitation

HALVES = Terms(b"the run of tests", 1, 0, tuple(range(8)), 70, 8, 2, 0, 4, 40, 20)


@pytest.mark.parametrize("half", [range(4), range(4, 8)])
def test_two_sums_of_one_round(half):
    """All get the same terms, and each half hears that the other has sent no keys."""
    found = Round(HALVES, {n: 0 for n in range(8) if n not in half}).play()
    assert found.server.result is None
    assert "could be two sums of one round" in str(found.refused[0])


@pytest.mark.parametrize("clients", [3, 10, 40, 100, 1000])
@pytest.mark.parametrize(("colluding", "dropping"), [(0.0, 0.3), (0.1, 0.1), (0.2, 0.1)])
def test_terms_that_are_made_give_one_sum(clients, colluding, dropping):
    terms = terms_of(clients, colluding=colluding, dropping=dropping, security_bits=20)
    Policy(colluding=colluding, dropping=dropping, security_bits=20).check(terms)


@pytest.mark.parametrize(
    ("clients", "colluding", "dropping"),
    [(10, 0.1, 0.1), (10, 0.1, 0.3), (100, 0.1, 0.1), (1000, 0.1, 0.1), (1000, 0.2, 0.1)],
)
def test_the_graph_of_fewer_adverts_is_no_weaker(clients, colluding, dropping):
    """The server says how many have sent keys: it gains next to nothing by saying few."""
    whole = parameters(clients, colluding, dropping)
    for advertised in np.linspace(whole.least, clients, 8).astype(int).tolist():
        found = parameters(clients, colluding, dropping, advertised=advertised)
        assert found.degree >= min(whole.degree, advertised - 1)
        assert found.complete or not whole.complete
        assert found.group >= 0.9 * whole.group


def test_a_graph_whose_groups_are_too_small():
    terms = terms_of(40, colluding=0.05, dropping=0.1)
    group = terms.parameters(40).group
    assert group < 36
    for wanted, refused in ((group, False), (group + 1, True)):
        found = Round(terms)
        found.clients[7] = replace(found.clients[7], policy=Policy(group=wanted))
        found.play(until=2)
        told = [str(error) for error in found.refused]
        sentence = f"could learn sums of {group} clients, which are fewer than {group + 1}"
        assert [sentence in line for line in told] == [True] * refused


def test_a_vector_that_was_computed_from_something_else():
    """The server sends one client another model than the terms speak of; or speaks of none."""
    model = hashlib.sha256(b"the model").digest()
    for terms, context in ((terms_of(5, context=model), bytes(32)), (terms_of(5), model)):
        found = Round(terms).play(until=2)
        client, state = found.clients[3], found.states[3]
        given = found.messages[3], *found.inputs[3]
        with pytest.raises(RefusedError, match="computed from something else than the terms say"):
            client.mask(state, *given, context)
        client.mask(state, *given, terms.context)


def test_terms_with_different_contexts_have_nothing_in_common():
    model = hashlib.sha256(b"the model").digest()
    found, other = Round(terms_of(5)), Round(terms_of(5, context=model))
    assert found.terms.tag != other.terms.tag
    with pytest.raises(RefusedError, match="belongs to another round, or to other terms"):
        found.server.receive(other.answer(0, 3, other.server.invitations()[3]))


def test_clients_that_nobody_knows():
    terms = terms_of([*range(7), 1000])
    with pytest.raises(RefusedError, match="clients of whom the directory has no key"):
        Client(0, identity(0), DIRECTORY).join(write_invitation(terms, 0))


def test_of_two_processes_that_sign_at_once_one_is_refused(tmp_path):
    """A dishonest server asks both, before either has read what the other signs."""
    terms = terms_of(7)
    journals = [Journal(tmp_path / "journal") for _ in range(8)]

    def claim(number):
        try:
            journals[number].claim(terms, Kind.REVEAL, bytes([number]))
        except RefusedError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == 1
    # Nor is what one of them signs lost by what another one does.
    journals[0].claim(terms, Kind.PLEDGE, b"one")
    journals[1].claim(replace(terms, run=b"another run here"), Kind.PLEDGE, b"two")
    with pytest.raises(RefusedError, match="nothing is signed twice"):
        journals[2].claim(terms, Kind.PLEDGE, b"other")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"a": 1}', '{"a": {"place": [1]}}', '{"a": {"place": [1, 2]}}']
)
def test_a_damaged_journal_gets_a_sentence(tmp_path, text):
    path = tmp_path / "journal"
    path.write_text(text)
    with pytest.raises(UserError, match="journal is damaged .* nothing more can be signed"):
        Journal(path)
