"""Messages: there and back, and whatever else may come in."""

import re

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.exchange.messages import Answer, Greeting, Hello, ResendRequest, Work
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.protocol import (
    HEADER,
    PAYLOAD,
    WIRE,
    from_records,
    num_payload_bytes,
    to_records,
)

MESSAGES = [
    Work("d", "l", 3, 2, 0.5, 12345, 1, 0.25, b"update"),
    Answer("d", "l", 3, 2, 10, 0.25, b"sketch"),
    ResendRequest("d", "l", 3, 2, 1),
    Hello("l", 2, 0),
    Hello("l", 2, 0, b"signature"),
    Greeting("l"),
    Greeting("l", b"challenge"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_there_and_back(message):
    records = to_records(message)
    assert from_records(records, *(type(m) for m in MESSAGES)) == message
    assert num_payload_bytes(records) == len(getattr(message, "payload", b""))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_every_field_is_checked(message):
    for name in to_records(message)[HEADER]:
        for wrong in ("x" * 5, -1, 1.5, b"", True, [1, 2]):
            records = to_records(message)
            if type(records[HEADER][name]) is type(wrong) and wrong != -1:
                continue
            records[HEADER][name] = wrong
            with pytest.raises(RejectedError) as error:
                from_records(records, type(message))
            assert error.value.reason == "header"


def test_what_is_no_message():
    for records in (
        RecordDict(),
        RecordDict({HEADER: MetricRecord({"a": 1})}),
        RecordDict({HEADER: ConfigRecord()}),
        to_records(MESSAGES[3]),
    ):
        with pytest.raises(RejectedError):
            from_records(records, Answer)


@pytest.mark.parametrize("name", ["protocol", "wire"])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_another_version_is_refused_by_a_sentence_that_names_both(message, name):
    for theirs in (0, 4, 6, 2**40):
        records = to_records(message)
        ours = records[HEADER][name]
        records[HEADER] = ConfigRecord({**records[HEADER], name: theirs, "kind": "unheard of"})
        with pytest.raises(RejectedError) as error:
            from_records(records, type(message))
        both = rf"version {theirs} of .* and this side speaks version {ours};"
        assert re.search(both, str(error.value))
        assert len(str(error.value)) < 140  # with the name of the exception, what a log shows


@pytest.mark.parametrize(
    "array",
    [
        Array(np.zeros(3)),
        Array(np.zeros(3, np.uint8)),
        Array(dtype="uint8", shape=(4,), stype="fetchsgd.wire", data=b"abc"),
        Array(dtype="object", shape=(3,), stype="fetchsgd.wire", data=b"abc"),
    ],
)
def test_other_arrays_are_not_even_unpacked(array):
    records = to_records(MESSAGES[1])
    records[PAYLOAD] = ArrayRecord({WIRE: array})
    with pytest.raises(RejectedError, match="not an array of bytes"):
        from_records(records, Answer)
    records[PAYLOAD] = ArrayRecord({"other": array})
    with pytest.raises(RejectedError, match="no payload"):
        from_records(records, Answer)


values = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())


@given(st.dictionaries(st.sampled_from(["protocol", "kind", "round", "client", "loss"]), values))
def test_nothing_but_a_rejection_comes_of_it(header):
    with pytest.raises(RejectedError):
        from_records(RecordDict({HEADER: ConfigRecord(header)}), Answer, ResendRequest)
