"""Bytes that anybody may have written: one exception, one sentence, and nothing is lost."""

import pytest
import torch
from exchange.loops import FETCHSGD, ask, data_of, loss, plan_for
from hypothesis import given, settings
from hypothesis import strategies as st

import fetchsgd as fs
from fetchsgd.exchange.frames import from_frame, to_frame
from fetchsgd.exchange.messages import Answer, ResendRequest, Work


def replied(plan, server, client=0):
    return fs.client_update(server.request(client), plan, loss, data_of(client))[0]


def change(frame, kind=Answer, **values):
    """The same frame with other values, and a checksum that is right."""
    content = from_frame(frame, kind)
    return to_frame(kind(**(vars(content) | values)))


PLAN = plan_for(FETCHSGD)
REFUSED = {
    "another plan": (lambda f: change(f, digest="0" * 32), "another plan"),
    "another server": (lambda f: change(f, lineage="0" * 16), "another server"),
    "another round": (lambda f: change(f, round=7), "of round 7, not 0"),
    "nobody asked": (lambda f: change(f, client=5), "client 5 was not asked in round 0"),
    "no examples": (lambda f: change(f, examples=0), "claims 0 examples"),
    "not finite": (lambda f: change(f, loss=float("nan")), "not finite"),
    "no payload": (lambda f: change(f, payload=b""), "."),
    "payload of others": (lambda f: change(f, payload=foreign_payload()), "another"),
    "a request": (lambda _: fs.Server(PLAN).request(0), "none of those expected"),
    "nothing": (lambda _: b"", "not a message"),
    "a later version": (
        lambda f: f[:3] + b"\x02" + f[4:],
        "version 2 of frames, and this side speaks version 1",
    ),
    "a text": (lambda _: "reply", "a message is bytes, not str"),
    "half": (lambda f: f[: len(f) // 2], "checksum is wrong"),
    "more": (lambda f: f + b"\0", "checksum is wrong"),
}


def foreign_payload():
    other = plan_for(FETCHSGD | {"cols": 30})
    return from_frame(replied(other, fs.Server(other)), Answer).payload


@pytest.mark.parametrize(("make", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_reply_that_is_not_right_is_refused_and_the_right_one_still_counts(make, sentence):
    server = fs.Server(PLAN)
    good = replied(PLAN, server)
    with pytest.raises(fs.RejectedError, match=sentence):
        server.receive(make(good))
    assert server.replies == ()
    assert server.receive(good) is None
    assert server.step().clients == (0,)


def test_a_reply_counts_once_and_in_its_own_round_alone():
    server = fs.Server(PLAN)
    reply = replied(PLAN, server)
    server.receive(reply)
    with pytest.raises(fs.RejectedError, match="client 0 has replied to round 0 already"):
        server.receive(reply)
    server.step()
    server.request(0)
    with pytest.raises(fs.RejectedError, match="the reply is of round 0, not 1"):
        server.receive(reply)


def test_a_transport_that_knows_its_clients_is_believed():
    server = fs.Server(PLAN)
    reply = replied(PLAN, server)
    with pytest.raises(fs.RejectedError, match="client 3 replies in the name of client 0"):
        server.receive(reply, client=3)
    assert server.receive(reply, client=0) is None


def test_who_asks_for_everything_again_and_again_is_refused():
    server = fs.Server(PLAN)
    task = from_frame(server.request(0), Work)
    asks = to_frame(ResendRequest(task.digest, task.lineage, 0, 0, 0))
    for _ in range(2):
        assert isinstance(server.receive(asks), bytes)
    with pytest.raises(fs.RejectedError, match="cannot be brought to version 0"):
        server.receive(asks)


def some_round():
    """A server that has made two steps, and a client with a state of the first."""
    plan = plan_for(FETCHSGD, grid="steps")
    server, states = fs.Server(plan), {}
    for _ in range(2):
        ask(server, plan, 0, states)
        server.step()
    return plan, server, states[0]


ROUND = some_round()


@settings(max_examples=100)
@given(at=st.integers(0, 10**6), mask=st.integers(1, 255), cut=st.booleans(), fixed=st.booleans())
def test_whatever_becomes_of_the_bytes_there_is_one_exception(at, mask, cut, fixed):
    """Damaged anywhere, on either side; also by somebody who knows how to make a checksum."""
    plan, server, state = ROUND
    request = server.request(0, held=state.version)
    reply, _ = fs.client_update(request, plan, loss, data_of(0), state)
    for frame, kind in ((request, Work), (reply, Answer)):
        payload = from_frame(frame, kind).payload
        where = payload if fixed else frame
        place = at % len(where)
        bad = where[:place] if cut else bytes(
            [*where[:place], where[place] ^ mask, *where[place + 1 :]]
        )  # fmt: skip
        bad = change(frame, kind, payload=bad) if fixed else bad
        with pytest.raises(fs.RejectedError):
            _ = (
                fs.client_update(bad, plan, loss, data_of(0), state)
                if kind is Work
                else server.receive(bad)
            )
    assert server.replies == ()


def test_a_request_of_another_plan_is_refused_and_the_state_stays():
    server = fs.Server(plan_for(FETCHSGD | {"k": 19}))
    with pytest.raises(fs.RejectedError, match="the server has another plan"):
        fs.client_update(server.request(0), PLAN, loss, data_of(0))


def test_initial_weights_that_differ_are_noticed():
    torch.manual_seed(0)
    one, other = (fs.Plan(torch.nn.Linear(3, 2), "uncompressed") for _ in range(2))
    with pytest.raises(fs.RejectedError, match="other initial weights"):
        fs.client_update(fs.Server(one).request(0), other, loss, data_of(0))


def test_a_state_that_is_damaged_is_refused():
    _, _, state = ROUND
    data = state.to_bytes()
    again = fs.ClientState.from_bytes(data)
    assert (again.lineage, again.version) == (state.lineage, state.version)
    assert again.vectors["held"].tobytes() == state.vectors["held"].tobytes()
    for bad in (b"", data[:40], data[:-30], b"x" + data, data[:100] + b"\xff" + data[101:]):
        with pytest.raises(fs.RejectedError):
            fs.ClientState.from_bytes(bad)


def test_the_errors_of_a_users_own_loss_are_their_own():
    def mistaken(model, batch):
        raise ValueError("a mistake of mine")

    with pytest.raises(ValueError, match="a mistake of mine"):
        fs.client_update(fs.Server(PLAN).request(0), PLAN, mistaken, data_of(0))
