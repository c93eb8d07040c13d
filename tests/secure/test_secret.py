"""Secrets are not seen by accident, and what was signed is not forgotten."""

import copy
import logging
import pickle

import pytest
from secure.rounds import DIRECTORY, Round, identity, seed_of, terms_of

from fetchsgd.secure import Client, Journal, RefusedError, Secret
from fetchsgd.secure.frames import Kind
from fetchsgd.secure.keys import OwnKeys
from fetchsgd.secure.messages import write_invitation


def test_a_secret_does_not_show():
    secret = Secret(b"thirty-two bytes that are secret")
    assert secret == Secret(secret.reveal())
    assert secret != Secret.random()
    assert secret != secret.reveal()
    assert "secret)" not in f"{secret} {secret!r} {[secret]}"
    for hide in (pickle.dumps, copy.copy, hash):
        with pytest.raises(TypeError):
            hide(secret)
    with pytest.raises(ValueError, match="32 bytes, not 3"):
        Secret(b"abc")


def test_nothing_secret_is_told(caplog, capsys):
    """Neither logged nor printed, nor in the repr of anything a caller holds."""
    with caplog.at_level(logging.DEBUG):
        found = Round(terms_of(5), {4: 2}).play()
    assert found.check()
    told = caplog.text + "".join(capsys.readouterr())
    told += repr(found.states) + repr(found.clients) + repr(found.server)
    for number in range(5):
        own = OwnKeys.derive(seed_of(number), found.terms, number)
        for value in (seed_of(number), own.self_mask, Secret(own.mask.private_bytes_raw())):
            assert value.reveal().hex() not in told
            assert repr(value.reveal())[2:-1] not in told
        assert "ClientState(invitation" in repr(found.states[number])


def test_fresh_keys_for_every_round():
    client = Client(0, identity(0), DIRECTORY)
    adverts = [client.join(write_invitation(terms_of(5, round=n), 0))[1][28:-64] for n in (1, 2)]
    assert len({advert[at : at + 32] for advert in adverts for at in (0, 32, 64)}) == 6
    again = Client(0, identity(0), DIRECTORY)
    assert again.join(write_invitation(terms_of(5, round=1), 0))[1][28:-64] != adverts[0]


def test_a_journal_outlasts_its_process(tmp_path):
    path = tmp_path / "journal"
    terms, later = terms_of(5, round=4), terms_of(5, round=5)
    Journal(path).claim(terms, Kind.ADVERT, b"one")
    again = Journal(path)
    again.claim(terms, Kind.ADVERT, b"one")
    again.claim(terms, Kind.SHARES, b"two")
    with pytest.raises(RefusedError, match="nothing is signed twice"):
        Journal(path).claim(terms, Kind.ADVERT, b"other")
    with pytest.raises(RefusedError, match="nothing is signed twice"):
        Journal(path).claim(terms, Kind.SHARES, b"other")
    Journal(path).claim(later, Kind.ADVERT, b"other")
    with pytest.raises(RefusedError, match="rounds only go up"):
        Journal(path).claim(terms, Kind.ADVERT, b"one")
    Journal(path).claim(terms_of(5, run=b"another run of 1"), Kind.ADVERT, b"x")
    assert {file.name for file in tmp_path.iterdir()} == {"journal", "journal.lock"}
