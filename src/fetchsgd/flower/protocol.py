"""What is in a message between server and client.

A message is a table of a few plain values, `header`, and at most one array of bytes, `payload`, in
the format of docs/wire.md; docs/protocol.md specifies both for clients in any language. Whatever
comes in may have been written by anybody: reading it checks names and types, and raises
`RejectedError` with a sentence.
"""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fetchsgd.exchange.messages import Content
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.versions import PROTOCOL, WIRE_FORMAT, refusal

HEADER, PAYLOAD, WIRE = "header", "payload", "wire"
STYPE = "fetchsgd.wire"  # how the array's bytes are to be read


Wanted = TypeVar("Wanted", bound=Content)
TYPES = {"str": str, "int": int, "float": float, "bytes": bytes}


def to_records(content: Content) -> RecordDict:
    """The content of a Flower message."""
    values: dict[str, Any] = {f.name: getattr(content, f.name) for f in _fields(type(content))}
    payload = values.pop("payload", None)
    versions = {"protocol": PROTOCOL, "wire": WIRE_FORMAT}
    header = ConfigRecord({**versions, "kind": content.kind, **values})
    records = RecordDict({HEADER: header})
    if payload is not None:
        array = Array(dtype="uint8", shape=(len(payload),), stype=STYPE, data=payload)
        records[PAYLOAD] = ArrayRecord({WIRE: array})
    return records


def from_records(records: RecordDict, *kinds: type[Wanted]) -> Wanted:
    """One of these kinds, or RejectedError."""
    header = records.config_records.get(HEADER)
    if header is None:
        raise RejectedError("header", "this is not a message of fetchsgd: it has no header")
    check_versions(header)
    by_name = {kind.kind: kind for kind in kinds}
    kind = by_name.get(str(header.get("kind")))
    if kind is None:
        raise RejectedError("header", f"the message is none of {', '.join(by_name)}")
    values: dict[str, Any] = {}
    for field in _fields(kind):
        if field.name == "payload":
            values["payload"] = payload_of(records)
        else:
            values[field.name] = _checked(field.name, header.get(field.name), str(field.type))
    return kind(**values)


def check_versions(header: ConfigRecord) -> None:
    """RejectedError unless both sides speak the same versions, whatever else the message says."""
    for name, what, ours in (
        ("protocol", "the protocol on Flower", PROTOCOL),
        ("wire", "the wire format", WIRE_FORMAT),
    ):
        theirs = _checked(name, header.get(name), "int")
        if theirs != ours:
            raise RejectedError("header", refusal(what, theirs, ours))


def _fields(kind: type[Content]) -> tuple[Field[Any], ...]:
    found: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    return found


def _checked(name: str, value: Any, wanted: str) -> Any:
    negative = isinstance(value, int) and value < 0
    if type(value) is not TYPES[wanted] or negative:
        raise RejectedError(
            "header", f"the field {name} of a message is missing, negative or not of type {wanted}"
        )
    return value


def payload_of(records: RecordDict) -> bytes:
    """The bytes of the array. They are never unpacked by anything but fetchsgd.wire."""
    arrays = records.array_records.get(PAYLOAD)
    if arrays is None or list(arrays) != [WIRE]:
        raise RejectedError("header", "the message has no payload")
    array = arrays[WIRE]
    if not isinstance(array, Array) or not isinstance(array.data, bytes):
        raise RejectedError("undecodable", "the payload is not an array")
    if array.stype != STYPE or array.dtype != "uint8" or array.shape != (len(array.data),):
        raise RejectedError("undecodable", "the payload is not an array of bytes")
    return array.data


def num_payload_bytes(records: RecordDict) -> int:
    """Of all arrays in a message, whatever they are."""
    return sum(
        len(array.data) for arrays in records.array_records.values() for array in arrays.values()
    )
