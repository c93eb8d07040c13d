"""Membership, settings, events and keys: the parts that need no federation."""

import stat

import pytest

pytest.importorskip("cryptography", reason="it comes with flwr: pip install 'fetchsgd[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fetchsgd.errors import UserError
from fetchsgd.flower.events import Events
from fetchsgd.flower.keys import make_keys
from fetchsgd.flower.membership import Membership, how_many, order_of_asking
from fetchsgd.flower.settings import FederationSettings, read_settings
from fetchsgd.server.sampling import Sampler

TINY = {"task.name": "tinytask:tiny"}


def test_the_rounds_own_clients_are_asked_first_and_the_others_are_spares():
    sampler = Sampler(12, 4, "epoch", 0)
    for round in range(5):
        order = order_of_asking(sampler, round)
        assert order[:4] == sampler.cohort(round).tolist()
        assert sorted(order) == list(range(12))
    assert order_of_asking(sampler, 0)[4:] != sorted(order_of_asking(sampler, 0)[4:])


@pytest.mark.parametrize(("oversample", "asked"), [(1.0, 10), (1.3, 13), (1.01, 11), (2.0, 20)])
def test_over_sampling(oversample, asked):
    assert how_many(10, oversample) == asked


def test_nodes_come_and_go():
    members = Membership(3)
    assert members.seen([7, 8]) == ([7, 8], [])
    assert members.seen([7, 8]) == ([], [])  # greeted already
    assert members.introduce(7, 0)
    assert members.introduce(8, 1)
    assert not members.introduce(8, 3)
    assert members.clients == {0, 1}
    assert members.seen([8, 9]) == ([9], [0])
    assert members.introduce(9, 1)  # 8 has restarted as 9
    assert members.node_of == {1: 9}
    assert members.seen([9]) == ([], [])  # that 8 is gone is no news


def test_two_nodes_say_that_they_are_the_same_client():
    members = Membership(3)
    members.seen([7, 8])
    members.introduce(7, 0)
    assert members.rivals(0) == []
    members.introduce(8, 0)
    assert members.node_of == {0: 8}
    assert members.rivals(0) == [7]
    assert members.seen([7]) == ([7], [0])  # asked once more, now that the later one is gone
    members.introduce(7, 0)
    assert members.rivals(0) == []
    assert members.node_of == {0: 7}


def test_a_former_self_that_is_gone_is_no_rival():
    members = Membership(3)
    members.seen([7])
    members.introduce(7, 0)
    members.seen([7, 8])
    members.introduce(8, 0)
    members.seen([8])
    assert members.rivals(0) == []


def test_a_node_that_did_not_answer_is_greeted_again():
    members = Membership(3)
    members.seen([7])
    members.forget(7)
    assert members.seen([7]) == ([7], [])


def test_settings_have_the_names_of_the_simulator():
    given = TINY | {"method.k": 7, "train.seed": 3, "settings": "upload.bits=4 federation.poll=1"}
    config, federation = read_settings(given | {"federation.deadline": 9})
    assert config.method_options["k"] == 7
    assert config.train.seed == 3
    assert config.quantiser.bits == 4
    assert federation == FederationSettings(deadline=9.0, poll=1.0)


def test_another_method_takes_one_key(caplog):
    """What the app lists for its own method does not stand in the way, and is told."""
    caplog.set_level("INFO", logger="flwr.fetchsgd")
    listed = {"method.name": "uncompressed", "method.k": 7, "method.cols": 9}
    config, _ = read_settings(TINY | listed | {"method.momentum": 0.5})
    assert config.method == "uncompressed"
    assert config.method_options == {"momentum": 0.5, "nesterov": False}
    said = [record.getMessage() for record in caplog.records]
    assert "method.cols = 9 is left out: uncompressed has no such option" in said


def test_the_method_may_be_named_among_the_settings():
    listed = {"method.name": "fetchsgd", "method.k": 7, "method.cols": 9}
    config, _ = read_settings(TINY | listed | {"settings": "method.name=true_topk"})
    assert config.method == "true_topk"
    assert config.method_options == {
        "k": 7, "momentum": 0.9, "mask_momentum": True, "revisit": 1.0, "revisit_rounds": 100,
        "nesterov": False,
    }  # fmt: skip


def test_a_node_may_have_options_of_its_own():
    config, _ = read_settings(TINY, {"partition-id": 1, "task.clients": 5})
    assert config.task.train.num_clients == 5


def test_a_client_may_hold_only_its_own_data():
    """Then the federation says how many clients there are."""
    alone = {"settings": "task.clients=1", "federation.clients": 40}
    config, _ = read_settings(TINY | alone)
    assert config.train.clients_per_round == 4
    with pytest.raises(UserError, match="from 1 to the task's 1 clients"):
        read_settings(TINY | alone | {"federation.clients": 0})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"federation.deadlin": 3}, "there is no setting federation.deadlin; did you mean"),
        ({"federation.deadline": 0}, "federation.deadline must be at least 1, got 0"),
        ({"federation.oversample": 0.5}, "federation.oversample must be at least 1"),
        ({"federation.min_replies": 5}, "federation.min_replies must be at most .* = 4"),
        ({"federation.norm_factor": 0.5}, "federation.norm_factor must be 0, .* or at least 1"),
        ({"federation.examples_factor": -1.0}, "federation.examples_factor must be at least 0"),
        ({"federation.out": ""}, "federation.out must name the run folder"),
        ({"k": 3}, "there is no setting 'k': settings are named section.key"),
        ({"settings": "federation.x=1"}, "there is no setting federation.x"),
        ({"method.kk": 3}, "there is no setting method.kk"),
        ({"settings": "train.diagnose=true"}, "in a federation nobody sends those"),
        ({"settings": "task.label='a"}, "settings must be a list of key=value, got .*No closing"),
        ({"federation.max_norm": float("inf")}, "max_norm must be finite and at least 0, got inf"),
    ],
    ids=str,
)
def test_mistakes_get_a_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        read_settings(TINY | given)


def test_events_go_on_from_a_line():
    events = Events()
    events.count("late", 3)
    events.count("rejected_norm")
    events.measure("reference_norm", 2.5)
    assert events.line()["federation/rejected"] == 1
    assert Events(events.line()).references["norm"] == 2.5
    assert Events(events.line()).line() == events.line()


def test_keys(tmp_path):
    made = make_keys(tmp_path, ["example.org", "192.0.2.7"], nodes=2)
    assert len(made) == 8
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    private = load_ssh_private_key((tmp_path / "node-1").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node-1.pub").read_bytes())
    assert private.public_key().public_numbers() == public.public_numbers()
    for name in ("ca.key", "server.key", "node-0", "node-1"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_keys_that_are_there_are_left_alone(tmp_path):
    make_keys(tmp_path, ["example.org"], nodes=1)
    before = (tmp_path / "node-0").read_bytes(), (tmp_path / "ca.crt").read_bytes()
    assert [path.name for path in make_keys(tmp_path, [], nodes=2)] == ["node-1", "node-1.pub"]
    assert before == ((tmp_path / "node-0").read_bytes(), (tmp_path / "ca.crt").read_bytes())


def test_keys_need_a_host(tmp_path):
    with pytest.raises(UserError, match="--host must name the server"):
        make_keys(tmp_path, [], nodes=1)
