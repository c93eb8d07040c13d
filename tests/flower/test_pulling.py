"""Replies over Flower's own grid: each is read on its own, whatever the others are."""

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

import httpx
from flower import fakegrid  # noqa: F401  Flower's task identity, which messages want
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from fetchsgd.exchange.messages import Answer
from fetchsgd.flower.protocol import from_records, to_records
from fetchsgd.flower.pulling import make_puller

MAX_BYTES = 10**6


class SuperLink:
    """Answers the requests of a grid. As in Flower, what has been pulled is deleted."""

    def __init__(self):
        self.replies, self.objects, self.pulls, self.confirmed = {}, {}, [], []

    def add(self, message_id, reply, spoil=None):
        """A reply as a SuperNode uploads it; `spoil` changes its objects."""
        reply.metadata.__dict__["_reply_to_message_id"] = message_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        if spoil is not None:
            objects = spoil(objects)
        self.objects |= objects
        proto = message_to_proto(remove_content_from_message(reply))
        self.replies[message_id] = (proto, get_object_tree(reply))
        return objects

    def PullMessages(self, request):  # noqa: N802
        self.pulls.append(list(request.message_ids))
        found = [self.replies.pop(name) for name in request.message_ids if name in self.replies]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request):  # noqa: N802
        if request.object_id not in self.objects:
            return PullObjectResponse(object_found=False, object_available=False)
        content = self.objects[request.object_id]
        return PullObjectResponse(
            object_found=True, object_available=content != b"", object_content=content
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def link():
    return SuperLink()


@pytest.fixture
def puller(link):
    grid = HttpGrid(token="t")
    grid._client = link
    grid.set_run(Run.create_empty(1))
    return make_puller(grid)


def asked():
    message = Message(RecordDict(), 7, "train", ttl=60.0)
    message.metadata.__dict__["_message_id"] = "a" * 64
    return message


def reply(client, extra=None):
    records = to_records(Answer("d", "l", 3, client, 10, 0.25, bytes([client]) * 100))
    if extra is not None:
        records["extra"] = extra
    return Message(records, reply_to=asked())


def not_protobuf(objects):
    """The extra ConfigRecord has a body that is not protobuf; sizes and names stay in order."""
    spoilt = {}
    for name, content in objects.items():
        kind, _, length = get_object_head_values_from_object_content(content)
        is_extra = kind == "ConfigRecord" and b"hostile" in content
        spoilt[name] = content[:-length] + b"\xff" * length if is_extra else content
    assert spoilt != objects
    return spoilt


def of_another_kind(objects):
    """The message itself is a ConfigRecord."""
    (name,) = [n for n, c in objects.items() if c.startswith(b"Message")]
    return objects | {name: ConfigRecord({"a": 1}).deflate()}


def without_a_body(objects):
    return {name: content[:20] for name, content in objects.items()}


def hostile(client):
    return reply(client, ConfigRecord({"hostile": "x" * 50}))


def clients_of(pulled):
    return [from_records(each.records, Answer).client for each in pulled if each.records]


@pytest.mark.parametrize("spoil", [not_protobuf, of_another_kind, without_a_body])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_an_unreadable_reply_is_named_and_takes_no_other_with_it(link, puller, place, spoil):
    names = [f"message-{n}" for n in range(5)]
    for number, name in enumerate(names):
        is_bad = number == place
        link.add(name, hostile(number) if is_bad else reply(number), spoil if is_bad else None)
    pulled = list(puller.pull(names, MAX_BYTES))
    assert clients_of(pulled) == [n for n in range(5) if n != place]
    assert [each.message_id for each in pulled if each.unreadable] == [names[place]]
    assert len(link.pulls) == 1  # one request, however many messages are out
    assert len(link.confirmed) == 5
    assert list(puller.pull([], MAX_BYTES)) == []


def test_flowers_own_way_loses_them_all(link, puller):
    """So this is worth its code; when Flower reads each reply on its own, it can go."""
    link.add("good", reply(1))
    link.add("bad", hostile(2), not_protobuf)
    with pytest.raises(Exception, match="Error parsing message"):
        puller.grid.pull_messages(["good", "bad"])
    assert not link.replies


def test_a_reply_that_is_being_uploaded_stops_nobody(link, puller):
    slow = link.add("slow", reply(1))
    link.add("quick", reply(2))
    last = next(iter(slow))
    link.objects[last] = b""  # announced, and not there yet
    assert clients_of(puller.pull(["slow", "quick"], MAX_BYTES)) == [2]
    assert clients_of(puller.pull(["slow"], MAX_BYTES)) == []
    link.objects[last] = slow[last]
    assert clients_of(puller.pull(["slow"], MAX_BYTES)) == [1]


def test_an_upload_that_was_broken_off_is_a_failure(link, puller):
    objects = link.add("gone", reply(1))
    del link.objects[next(iter(objects))]
    (pulled,) = puller.pull(["gone"], MAX_BYTES)
    assert "not uploaded in time" in pulled.failure
    assert not pulled.unreadable


def test_what_a_client_writes_into_its_message_does_not_count(link, puller):
    """It cannot reply in the name of another, whose message it would have to know."""
    first, second = reply(1), reply(2)
    objects = link.add("first", first)
    link.add("second", second)
    forged = make_message(second.metadata, second.content).deflate()
    assert get_object_id(forged) not in objects
    found = {each.message_id: each for each in puller.pull(["first", "second"], MAX_BYTES)}
    assert clients_of(found.values()) == [1, 2]
    first.metadata.__dict__["_reply_to_message_id"] = "second"
    (name,) = [n for n, c in objects.items() if c.startswith(b"Message")]
    link.add("first", reply(1), lambda objects: objects)
    link.objects[name] = first.deflate()
    (pulled,) = puller.pull(["first"], MAX_BYTES)
    assert pulled.message_id == "first"


def test_a_reply_that_is_too_long_is_not_read(link, puller):
    link.add("long", reply(1, ConfigRecord({"x": "y" * 1000})))
    (pulled,) = puller.pull(["long"], 500)
    assert "more than 500 bytes" in pulled.unreadable


def test_errors_of_clients_are_on_one_line(link, puller):
    link.add("bad", Message(Error(0, "oh\nround 3 of 3: 12 replies" * 100), reply_to=asked()))
    (pulled,) = puller.pull(["bad"], MAX_BYTES)
    assert "oh" in pulled.failure
    assert "\n" not in pulled.failure
    assert len(pulled.failure) <= 200


def test_unasked_messages_are_left_alone(link, puller):
    link.add("other", reply(1))
    real = link.PullMessages
    link.PullMessages = lambda request: real(type(request)(message_ids=["other", "mine"]))
    link.add("mine", reply(2))
    assert clients_of(puller.pull(["mine"], MAX_BYTES)) == [2]


def test_a_superlink_that_is_gone_ends_the_run(link, puller):
    link.add("good", reply(1))

    def refuse(_):
        raise httpx.ConnectError("gone")

    link.PullObject = refuse
    with pytest.raises(httpx.ConnectError):
        list(puller.pull(["good"], MAX_BYTES))
