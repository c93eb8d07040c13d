"""Replies from Flower, each read on its own, so that a hostile one does not harm the others.

`Grid.pull_messages` deletes replies on the SuperLink before it reads them, one after the other: one
that it cannot read ends the call, and all replies of that call are lost. A reply that is announced
but never uploaded makes it wait for up to two hours. Here one request asks which replies have been
announced; then the parts of each are fetched and read separately, and a reply that is not complete
is looked at again the next time. At most one reply is in memory at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import httpx
from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from fetchsgd.exchange.rejections import shown
from fetchsgd.flower.protocol import num_payload_bytes

MAX_IDS = 500  # in a request
MAX_OBJECTS = 10_000  # in a reply; Flower cuts arrays into pieces of 5 MB


class _UnreadableError(Exception):
    """What a client has sent is not a message."""


class _LostError(Exception):
    """A part of a reply is no longer there: its upload took too long, or was broken off."""


@dataclass(frozen=True)
class Pulled:
    """The reply to one of our messages: its records, why there are none, or what is wrong."""

    message_id: str  # of our message
    records: RecordDict | None = None
    payload_bytes: int = 0
    failure: str = ""  # Flower or the client says that there is no reply
    unreadable: str = ""  # there is one, and it is not a message


class Puller(Protocol):
    """Looks for replies."""

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Iterator[Pulled]:
        """What has come in reply to these, each at most so long."""


def make_puller(grid: Grid) -> Puller:
    """For the grid of a ServerApp's process, or any other."""
    return ReplyByReply(grid) if isinstance(grid, HttpGrid) else OneIdAtATime(grid)


class OneIdAtATime:
    """For grids without requests over a network: a call for each message.

    Replies are in this process already, so their length is of no use.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Iterator[Pulled]:  # noqa: ARG002
        for message_id in message_ids:
            try:
                replies = list(self.grid.pull_messages([message_id]))
                pulled = [_read(message_id, reply) for reply in replies[:1]]
            except httpx.HTTPError:
                raise  # the SuperLink is gone
            except Exception as error:
                pulled = [Pulled(message_id, unreadable=shown(error))]
            yield from pulled


@dataclass
class _Announced:
    """A reply that the SuperLink knows of."""

    reply_id: str
    objects: list[str]  # ids of its parts
    missing: str | None = None  # the part that had not been uploaded when we looked last

    def in_order(self) -> list[str]:
        """The part that was missing comes first: without it there is no use for the others."""
        if self.missing is None:
            return self.objects
        return [self.missing, *(name for name in self.objects if name != self.missing)]


class ReplyByReply:
    """Flower's requests, as `HttpGrid.pull_messages` of flwr 1.41 makes them, for each reply."""

    def __init__(self, grid: HttpGrid) -> None:
        self.grid = grid
        self.announced: dict[str, _Announced] = {}  # by the id of our message

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Iterator[Pulled]:
        wanted = set(message_ids)
        self.announced = {name: a for name, a in self.announced.items() if name in wanted}
        asked = [name for name in message_ids if name not in self.announced]
        for start in range(0, len(asked), MAX_IDS):
            self._ask(asked[start : start + MAX_IDS])
        for message_id in list(self.announced):
            pulled = self._fetch(message_id, max_bytes)
            if pulled is not None:
                del self.announced[message_id]
                yield pulled

    def _ask(self, message_ids: list[str]) -> None:
        client = self.grid._runtime_client
        response = client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        trees = zip(response.messages_list, response.message_object_trees, strict=True)
        for message, tree in trees:
            # The SuperLink has checked these; in the reply itself a client may write anything.
            message_id = message.metadata.reply_to_message_id
            if message_id in message_ids:
                objects = _ids(tree)
                self.announced[message_id] = _Announced(message.metadata.message_id, objects)

    def _fetch(self, message_id: str, max_bytes: int) -> Pulled | None:
        """The reply, or None while parts of it are still being uploaded."""
        announced = self.announced[message_id]
        try:
            contents = self._contents(announced, max_bytes)
            if contents is None:
                return None
            message = inflate_object_from_contents(announced.reply_id, contents)
            pulled = _read(message_id, message)
        except httpx.TransportError:
            raise  # the SuperLink is gone
        except _LostError as error:
            pulled = Pulled(message_id, failure=shown(error))
        except Exception as error:
            pulled = Pulled(message_id, unreadable=shown(error))
        self._confirm(announced)
        return pulled

    def _contents(self, announced: _Announced, max_bytes: int) -> dict[str, bytes] | None:
        """All parts of a reply by their ids, or None if one has not been uploaded yet."""
        if len(announced.objects) > MAX_OBJECTS:
            raise _UnreadableError(f"the reply has more than {MAX_OBJECTS} parts")
        contents: dict[str, bytes] = {}
        length = 0
        for object_id in announced.in_order():
            response = self.grid._runtime_client.PullObject(
                PullObjectRequest(
                    node=self.grid.node, run_id=self.grid.run.run_id, object_id=object_id
                )
            )
            if not response.object_found:
                raise _LostError("the reply was announced, and not uploaded in time")
            if not response.object_available:
                announced.missing = object_id
                return None
            contents[object_id] = response.object_content
            length += len(response.object_content)
            if length > max_bytes:
                raise _UnreadableError(f"the reply has more than {max_bytes} bytes")
        return contents

    def _confirm(self, announced: _Announced) -> None:
        """The SuperLink may delete the reply."""
        self.grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.grid.node,
                run_id=self.grid.run.run_id,
                message_object_id=announced.reply_id,
            )
        )


def _ids(tree: ObjectTree) -> list[str]:
    """Of all objects in a tree, each once."""
    return list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))


def _read(message_id: str, message: object) -> Pulled:
    if not isinstance(message, Message):
        return Pulled(message_id, unreadable="the reply is not a message")
    if message.has_error():
        return Pulled(message_id, failure=shown(message.error.reason))
    if not message.has_content() or not isinstance(message.content, RecordDict):
        return Pulled(message_id, unreadable="the reply has no records")
    return Pulled(message_id, message.content, num_payload_bytes(message.content))
