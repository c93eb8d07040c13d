"""Secure aggregation in federations without processes: it trains, and what the server sees."""

import stat

import numpy as np
import pytest
import torch
from scipy.stats import chi2

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import counts, federation, lines, train, train_until_killed, weights
from flower.phases import phase_of
from flower.secretly import (
    Opened,
    Sums,
    node_config,
    own_folder,
    quick_folder,
    same_sums,
    secret_federation,
)

from fetchsgd.errors import UserError
from fetchsgd.exchange.messages import SecureReply
from fetchsgd.exchange.totals import MOST_LOSS, from_totals, to_totals
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.secure.participant import SecureParticipant
from fetchsgd.flower.secure.show import cells_of
from fetchsgd.flower.settings import read_settings
from fetchsgd.secure import planes, protocol_bytes
from fetchsgd.simulation import Run

CASES = [
    ("fetchsgd", {"upload__sum_bits": 10}),
    ("true_topk", {}),
    ("fedavg", {"upload__sum_bits": 10}),
    ("uncompressed", {"train__averaging": "examples", "upload__sum_bits": 12}),
    ("uncompressed", {"settings": "local.steps=2 local.momentum=0.9 local.state=keep"}),
]
NAMES = ["fetchsgd", "true_topk", "fedavg", "examples", "kept"]


@pytest.fixture(scope="module")
def keys():
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def folder(keys):
    return own_folder(keys)


@pytest.mark.parametrize(("method", "more"), CASES, ids=NAMES)
def test_the_federation_trains_as_the_simulator_does(method, more, folder, monkeypatch):
    """Sums and weights are the same to the bit, round after round.

    A simulator computes the gradients of a cohort together, and they may differ in the last bits
    from those of clients alone: so do half of these rows and more. Rounding to levels takes that
    away unless it tips one, which other last bits would do in one of 1,500 such tests and fewer.
    """
    grid = secret_federation(folder / "real", method, train__epochs=4.0, **more)
    sums, opened = Sums(monkeypatch), Opened(monkeypatch)
    result = train(grid)
    sums.check()
    found = opened.take()
    for (_, sum), (cells, *_) in zip(sums.found, found, strict=True):
        assert np.array_equal(sum.cells, cells.numpy())
    settings, _ = read_settings(grid.run_config)
    expected = Run(settings).execute(folder / "simulated")
    same_sums(found, opened.take())
    assert result["rounds"] == expected["rounds"] == len(found) == 8
    assert weights(folder / "real").count_nonzero() > 0
    assert torch.equal(weights(folder / "real"), weights(folder / "simulated"))
    assert result["upload_bytes"] == expected["upload_bytes"]
    assert result["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-5)
    last, wanted = lines(folder / "real")[-1], lines(folder / "simulated")[-1]
    assert last["sum_step"] == wanted["sum_step"]
    assert counts(result)["replies"] == 48
    assert counts(result)["resent"] == counts(result)["failed"] == 0


def test_measured_bytes_are_those_of_the_ledger_and_of_the_protocol(folder, monkeypatch):
    sums = Sums(monkeypatch)
    result = train(secret_federation(folder / "run", train__epochs=1.0))
    phases = [
        protocol_bytes(6, terms.parameters(6).degree, terms.cells, terms.bits, terms.totals)
        for terms in sums.terms
    ]
    up = sum(phase.up for each in phases for phase in each.values())
    assert counts(result)["received_bytes"] == result["wire_upload_bytes"] == up
    down = sum(phase.down for each in phases for phase in each.values())
    # Beside it all fetch a difference of few weights, whose size the ledger knows on average.
    assert 0 < counts(result)["sent_bytes"] - down < 12 * 400
    assert abs(counts(result)["sent_bytes"] - result["wire_download_bytes"]) < 8 * 12


def looks_uniform(values, kinds):
    """By a chi-square, at a level of 1e-6 on either side: a right program fails it so rarely."""
    expected = values.size / kinds
    statistic = ((np.bincount(values, minlength=kinds) - expected) ** 2 / expected).sum()
    return 1e-6 < chi2.cdf(statistic, kinds - 1) < 1 - 1e-6


def test_what_the_server_receives_of_a_client_is_noise(folder, monkeypatch):
    """Every message of every client, and nothing of its levels in any of them."""
    sums, received = Sums(monkeypatch), []
    more = {"upload__sum_bits": 4, "settings": "method.cols=2000"}
    grid = secret_federation(folder / "run", **more)

    def listen(message, reply):
        if phase_of(message) is not None:
            content = from_records(reply.content, SecureReply)
            received.append((phase_of(message), content.client, reply, content.payload))
        return reply

    for node in grid.nodes.values():
        node.behave = listen
    train(grid)
    sums.check()
    (terms,) = sums.terms
    assert len(received) == 5 * 6
    masked = {client: cells_of(data, terms) for phase, client, _, data in received if phase == 2}
    for client, cells in masked.items():
        plain, totals = sums.plain[0, client]
        assert cells.size == plain.size >= 2000
        assert looks_uniform(cells, 16), client
        assert not looks_uniform(plain, 16)
        assert looks_uniform((cells - plain) % 16, 16)
        assert (cells == plain).mean() < 0.2
        words = planes.pack(plain, terms.bits).tobytes()
        for _, _, reply, data in received:
            assert words[:64] not in data
            assert totals[1:].tobytes() not in data
            assert set(reply.content["header"]) == {
                "protocol",
                "wire",
                "kind",
                "lineage",
                "round",
                "client",
            }
    first = masked[min(masked)]
    others = [cells for client, cells in masked.items() if client != min(masked)]
    assert all(looks_uniform((first - cells) % 16, 16) for cells in others)


def test_nothing_is_left_of_a_round_but_what_was_signed(folder):
    train(secret_federation(folder / "run"))
    state = folder / "state"
    kept = {path.suffix for path in state.iterdir()}
    assert kept == {".journal", ".lock", ".safetensors"}


def test_a_clients_part_is_readable_by_its_owner_alone(folder):
    grid = secret_federation(folder / "run")
    modes = []

    def look(message, reply):
        modes.extend(path.stat().st_mode for path in (folder / "state").glob("*.secure"))
        assert not reply.has_error()
        return reply

    for node in grid.nodes.values():
        node.behave = look
    train(grid)
    assert modes
    assert {stat.S_IMODE(mode) for mode in modes} == {0o600}
    for node in grid.nodes.values():
        assert not node.context.state.config_records
        assert not node.context.state.array_records


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"upload__secure": False}, "without secure aggregation is for simulations"),
        ({"federation__max_norm": 3.0}, "max_norm looks at single replies"),
        ({"federation__examples_factor": 3.0}, "examples_factor looks at single replies"),
        ({"federation__directory": ""}, "needs every client's public key"),
        ({"federation__directory": "/none/such"}, "cannot read the directory"),
        ({"upload__dropping": 0.45}, "a cohort of 6 clients does not go with"),
        ({"train__clients_per_round": 5}, "a cohort of 2 clients does not go with"),
        ({"merge__name": "vetted", "merge__groups": 3}, "run the protocol once for each group"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(more, sentence, folder):
    with pytest.raises(UserError, match=sentence):
        train(secret_federation(folder / "run", **more))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"state": None}, "needs a folder in which this client keeps what it has signed"),
        ({"directory": None}, "directory is missing"),
        ({"secure-clients": 7}, "a cohort of 6 is smaller than 7 clients"),
        ({"secure-colluding": 0.5}, "less than a fraction of 0.5"),
        ({"secure-group": 6}, "could learn sums of"),
        ({"secure-clients": "many"}, "secure-clients in the node config must be a whole number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_node_that_lacks_something_says_so_and_is_left_out(config, sentence, folder, caplog):
    """Client 0 fails in the first phase, and the others go on without it."""
    grid = secret_federation(folder / "run", clients=range(6), federation__clients=6)
    node = grid.nodes[100].context.node_config
    for name, value in config.items():
        node.pop(name, None)
        if value is not None:
            node[name] = value
    with caplog.at_level("WARNING", "flwr.fetchsgd"):
        result = train(grid)
    assert counts(result)["failed"] == 1
    assert counts(result)["replies"] == 5
    assert sentence in caplog.text


def test_a_client_must_have_its_own_key(folder):
    config = node_config(folder / "run", 0)
    with pytest.raises(UserError, match="another key for client 0"):
        SecureParticipant.of(0, config | {"identity": str(folder / "keys" / "client-1")})
    config.pop("identity")
    with pytest.raises(UserError, match="identity is missing"):
        SecureParticipant.of(0, config)


def test_a_node_may_insist_on_secure_aggregation(tmp_path):
    grid = federation(tmp_path / "run", federation__attempts=1, federation__deadline=2.0)
    for node in grid.nodes.values():
        node.context.node_config["secure"] = True
    with pytest.raises(UserError, match="0 replies"):
        train(grid)


def test_weights_and_losses_add_up_as_whole_numbers():
    given = [(3, 0.5), (1, -2.25), (7, 1.0), (2, 1e9), (1, float("nan"))]
    total = sum(to_totals(*one).astype(object) for one in given) % (1 << 64)
    weight, loss = from_totals(total.astype(np.uint64))
    assert weight == 14
    assert loss == pytest.approx((1.5 - 2.25 + 7 + 3 * MOST_LOSS) / 14)
    with pytest.raises(ValueError, match="weighs from 1"):
        to_totals(0, 1.0)


PRIVATE = {
    "upload__sum_bits": 12, "train__clients_per_round": 6, "privacy__mode": "distributed",
    "privacy__mechanism": "skellam", "privacy__noise": 0.5, "privacy__clip": 0.5,
}  # fmt: skip


def test_noise_by_the_clients_is_the_simulators(folder, monkeypatch):
    """With noise from the seed, to the bit; what it costs is counted in sums of each client."""
    sums, opened = Sums(monkeypatch), Opened(monkeypatch)
    more = PRIVATE | {"privacy__random": "seed", "train__epochs": 2.0}
    grid = secret_federation(folder / "real", **more)
    result = train(grid)
    sums.check()
    found = opened.take()
    settings, _ = read_settings(grid.run_config)
    expected = Run(settings).execute(folder / "simulated")
    same_sums(found, opened.take())
    assert torch.equal(weights(folder / "real"), weights(folder / "simulated"))
    assert result["epsilon"] == expected["epsilon"] > 0
    assert result["wire_upload_bytes"] == expected["wire_upload_bytes"]
    assert result["privacy"]["sums"] == 2
    assert result["train_loss"] is None
    assert all(levels[1].tolist() == [1, 0] for levels in sums.plain.values())


def test_noise_is_secret_and_drawn_anew(folder, monkeypatch):
    sums = Sums(monkeypatch)
    for name in ("one", "two"):
        train(secret_federation(folder / name, **PRIVATE))
    one, two = (found for _, found in sums.found)
    assert one.clients == two.clients
    apart = (one.cells.astype(int) - two.cells + 2048) % 4096 - 2048
    assert apart.std() > 10
    central = {"privacy__mode": "central", "privacy__mechanism": "gaussian"}
    with pytest.raises(UserError, match="'central' is for simulations"):
        train(secret_federation(folder / "three", **PRIVATE | central))


def test_a_client_that_has_spent_its_budget_takes_no_further_part(folder, monkeypatch):
    """Sums that the server has seen count, also those of a round that was done again."""
    sums = Sums(monkeypatch)
    six = {"clients": range(6), "federation__clients": 6, "train__epochs": 6.0}
    budget = {"privacy__epsilon": 23.0}  # enough for three sums
    grid = secret_federation(folder / "run", **PRIVATE | six | budget)
    train_until_killed(grid, 5)  # after the requests of round 0 have left
    result = train(secret_federation(folder / "run", **PRIVATE | six | budget))
    assert result["status"] == "finished"
    assert result["rounds"] == 2
    assert result["privacy"]["sums"] == 3
    assert 20 < result["epsilon"] <= 23
    assert "one more would spend an epsilon of" in result["stopped"]
    assert sums.places[:2] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"privacy-noise": 0.7}, "the run has a noise of 0.5, and this node wants 0.7"),
        ({"privacy-clip": 0.4}, "the run clips at 0.5, and this node sends nothing longer"),
    ],
    ids=["noise", "clip"],
)
def test_a_node_may_insist_on_noise(config, sentence, folder, caplog):
    grid = secret_federation(folder / "run", clients=range(6), federation__clients=6, **PRIVATE)
    grid.nodes[100].context.node_config.update(config)
    with caplog.at_level("WARNING", "flwr.fetchsgd"):
        result = train(grid)
    assert counts(result)["replies"] == 5
    assert sentence in caplog.text
