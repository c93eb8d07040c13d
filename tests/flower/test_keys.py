"""Clients' own keys and the directory of them, as `python -m fetchsgd.flower.keys` makes them."""

import stat
import sys

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from fetchsgd.errors import UserError
from fetchsgd.flower import keys
from fetchsgd.flower.identities import (
    own_directory,
    own_identity,
    read_directory,
    read_identity,
)
from fetchsgd.flower.keys import make_identities, make_keys


def public(folder, number):
    return read_identity(folder / f"client-{number}").public_key().public_bytes_raw()


def command(monkeypatch, folder, *words):
    monkeypatch.setattr(sys, "argv", ["keys", "--out", str(folder), *words])
    keys.main()


def test_a_key_for_each_client_and_a_directory_of_all(tmp_path):
    made = make_identities(tmp_path / "keys", 3)
    folder = tmp_path / "keys"
    assert [path.name for path in made] == ["client-0", "client-1", "client-2", "directory.json"]
    assert read_directory(folder / "directory.json") == {n: public(folder, n) for n in range(3)}
    for number in range(3):
        assert stat.S_IMODE((folder / f"client-{number}").stat().st_mode) == 0o600


def test_more_clients_extend_it_and_fewer_change_nothing(tmp_path):
    make_identities(tmp_path, 2)
    before = read_directory(tmp_path / "directory.json")
    private = (tmp_path / "client-1").read_bytes()
    made = make_identities(tmp_path, 4)
    assert [path.name for path in made] == ["client-2", "client-3", "directory.json"]
    after = read_directory(tmp_path / "directory.json")
    assert {number: after[number] for number in before} == before
    assert sorted(after) == [0, 1, 2, 3]
    assert (tmp_path / "client-1").read_bytes() == private
    assert make_identities(tmp_path, 1) == []
    assert read_directory(tmp_path / "directory.json") == after


def test_who_has_taken_its_key_along_keeps_it(tmp_path):
    make_identities(tmp_path, 2)
    before = read_directory(tmp_path / "directory.json")
    (tmp_path / "client-0").unlink()
    made = make_identities(tmp_path, 3)
    assert [path.name for path in made] == ["client-2", "directory.json"]
    assert read_directory(tmp_path / "directory.json")[0] == before[0]


def test_a_key_that_is_not_the_directorys(tmp_path):
    make_identities(tmp_path, 2)
    (tmp_path / "client-1").write_bytes((tmp_path / "client-0").read_bytes())
    with pytest.raises(UserError, match=r"client-1 is not the key that .* has of client 1"):
        make_identities(tmp_path, 3)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", None])
def test_a_corrupt_key_gets_a_sentence(tmp_path, content):
    make_identities(tmp_path, 1)
    path = tmp_path / "client-0"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match="client-0 is not a private key as fetchsgd.flower.keys"):
        make_identities(tmp_path, 2)


def test_a_nodes_key_is_not_a_clients(tmp_path):
    make_keys(tmp_path, ["example.org"], nodes=0)
    with pytest.raises(UserError, match="server.key is not an Ed25519 key"):
        read_identity(tmp_path / "server.key")


def test_the_command_prints_names_and_no_keys(tmp_path, monkeypatch, capsys):
    command(monkeypatch, tmp_path, "--clients", "2")
    told = capsys.readouterr()
    made = ["client-0", "client-1", "directory.json"]
    assert told.out.split() == [str(tmp_path / name) for name in made]
    assert sorted(path.name for path in tmp_path.iterdir()) == made
    for number in range(2):
        for line in (tmp_path / f"client-{number}").read_text().splitlines():
            assert line not in told.out + told.err
    command(monkeypatch, tmp_path, "--clients", "2")
    assert "holds all of these already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--clients", "0"], "error: --clients must be at least 1, got 0"),
        (["--nodes", "1", "--clients", "1"], "error: --host must name the server"),
        ([], "error: --host must name the server"),
    ],
)
def test_mistakes_get_a_sentence(tmp_path, monkeypatch, words, sentence):
    with pytest.raises(SystemExit, match=sentence):
        command(monkeypatch, tmp_path, *words)


def test_what_a_node_was_given(tmp_path):
    make_identities(tmp_path, 1)
    given = {"identity": str(tmp_path / "client-0"), "directory": str(tmp_path / "directory.json")}
    identity, directory = own_identity(given, 0), own_directory(given, 0)
    assert directory == {0: identity.public_key().public_bytes_raw()}
    assert own_identity({}, 0) is own_directory({}, 0) is None
    with pytest.raises(UserError, match="identity must name a file of this node, got 3"):
        own_identity({"identity": 3}, 0)
    with pytest.raises(UserError, match="cannot read the client's key .*nowhere"):
        own_identity({"identity": str(tmp_path / "nowhere")}, 0)
