"""Messages as Flower's records (docs/protocol.md, "The envelope")."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from plain_client.reading import VERSION

PROTOCOL = 5
FIELDS = {
    "greeting": {"lineage": str, "challenge": bytes},
    "hello": {"lineage": str, "client": int, "held": int, "signature": bytes},
    "work": {
        "digest": str, "lineage": str, "round": int, "client": int, "rate": float,
        "checksum": int, "merged": int, "size": float,
    },
    "answer": {
        "digest": str, "lineage": str, "round": int, "client": int, "examples": int, "loss": float,
    },
    "asks": {"digest": str, "lineage": str, "round": int, "client": int, "held": int},
}  # fmt: skip


def packed(kind: str, payload: bytes | None = None, **values: object) -> RecordDict:
    """A message to the server."""
    assert {name: type(value) for name, value in values.items()} == FIELDS[kind]
    versions = {"protocol": PROTOCOL, "wire": VERSION}
    records = RecordDict({"header": ConfigRecord({**versions, "kind": kind, **values})})
    if payload is not None:
        array = Array(dtype="uint8", shape=(len(payload),), stype="fetchsgd.wire", data=payload)
        records["payload"] = ArrayRecord({"wire": array})
    return records


def unpacked(records: RecordDict, kind: str) -> dict:
    """The fields of a message of the server, and its payload."""
    header = records.config_records["header"]
    for name, what, ours in (
        ("protocol", "the protocol on Flower", PROTOCOL), ("wire", "the wire format", VERSION),
    ):  # fmt: skip
        if header.get(name) != ours:
            raise ValueError(
                f"the message is in version {header.get(name)} of {what}, and this side speaks "
                f"version {ours}"
            )
    if header["kind"] != kind:
        raise ValueError(f"a message of the kind {kind} was expected, not {header['kind']}")
    found = {name: header[name] for name in FIELDS[kind]}
    for name, value in found.items():
        if type(value) is not FIELDS[kind][name]:
            raise ValueError(f"the field {name} is not of the type {FIELDS[kind][name].__name__}")
    if "payload" in records.array_records:
        found["payload"] = records.array_records["payload"]["wire"].data
    return found
