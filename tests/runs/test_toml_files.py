"""What is written is what is read back."""

import datetime
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.errors import UserError
from fetchsgd.runs.toml_files import read_toml, write_toml

PLAIN = st.one_of(st.integers(), st.booleans(), st.floats(), st.text())
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)


def same(a, b):
    """Equal, of one type, and nan as well."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=4), max_size=3))
def test_toml_is_written_as_it_is_read(settings):
    assert same(tomllib.loads(write_toml(settings)), settings)


def test_none_is_left_out():
    settings = {"task": {"subset": None, "name": "digits", "table": {"a": None, "b": 1}}}
    assert tomllib.loads(write_toml(settings)) == {"task": {"name": "digits", "table": {"b": 1}}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (datetime.date(2020, 1, 1), r"task.x must be a text, a number, .* got datetime.date"),
        ([1, None], r"task.x\[1\] must be a text"),
        ({1: 2}, "task.x must be a text"),
        ("\udcff", "task.x must be valid Unicode"),
    ],
)
def test_what_cannot_be_kept(value, message):
    with pytest.raises(UserError, match=message):
        write_toml({"task": {"x": value}})


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "a.toml").write_bytes(b'[task]\nname = "\xff"\n')
    with pytest.raises(UserError, match="a.toml is not valid TOML"):
        read_toml(tmp_path / "a.toml")
