"""LEAF's files: one user at a time, equal to json's own reading, and sentences for mistakes."""

import json
import re
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.tasks import leaf
from fetchsgd.tasks.leaf import PIXELS, Scanner, read_users


def shard(**samples):
    """A shard of users with so many samples each."""
    draw = np.random.default_rng(0)
    data = {
        user: {
            "x": np.round(draw.random((n, PIXELS)), 3).tolist(),
            "y": draw.integers(62, size=n).tolist(),
        }
        for user, n in samples.items()
    }
    return {"users": list(data), "num_samples": list(samples.values()), "user_data": data}


def written(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


# --- reading


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_users_come_as_bytes(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(leaf, "CHUNK", chunk)
    content = shard(ada=3, bob=0, eve=1)
    users = list(read_users(written(tmp_path / "a.json", content)))
    assert [user for user, _, _ in users] == ["ada", "bob", "eve"]
    for user, images, labels in users:
        told = content["user_data"][user]
        expected = np.rint(255 * np.array(told["x"]).reshape(-1, PIXELS))
        assert images.dtype == labels.dtype == np.uint8
        np.testing.assert_array_equal(images, expected)
        np.testing.assert_array_equal(labels, told["y"])


def test_every_level_of_grey_survives(tmp_path):
    """LEAF writes levels divided by 255."""
    levels = np.arange(PIXELS) % 256
    content = {
        "users": ["a"],
        "num_samples": [1],
        "user_data": {"a": {"x": [(levels / 255).tolist()], "y": [61.0]}},
    }
    ((_, images, labels),) = read_users(written(tmp_path / "a.json", content))
    np.testing.assert_array_equal(images[0], levels)
    assert labels.tolist() == [61]


def test_order_of_keys_blanks_and_what_else_there_is_do_not_matter(tmp_path):
    content = shard(ada=1, bob=2)
    turned = {"hierarchies": [{"a": 1}], **dict(reversed(content.items()))}
    users = list(read_users(written(tmp_path / "a.json", json.dumps(turned, indent=3) + "\n\n")))
    assert [len(labels) for _, _, labels in users] == [1, 2]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    content=st.dictionaries(st.text(), VALUES, max_size=4),
    chunk=st.integers(1, 9),
    indent=st.none() | st.integers(0, 2),
    ascii=st.booleans(),
)
def test_any_object_in_pieces_equals_json_whole(content, chunk, indent, ascii, tmp_path_factory):
    text = json.dumps(content, indent=indent, ensure_ascii=ascii)
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with patch.object(leaf, "CHUNK", chunk), path.open(errors="surrogatepass", newline="") as file:
        scanner = Scanner(path, file)
        found = {name: scanner.value("it") for name in scanner.members("it")}
        scanner.end()
    assert found == content


@pytest.mark.parametrize("chunk", [1, 7, 300])
def test_every_cut_is_noticed(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(leaf, "CHUNK", chunk)
    content = {"users": ["a", "é"], "num_samples": [0, 0]}
    data = {"a": {"x": [], "y": []}, "é": {"y": [], "x": [], "more": [-1.5e-3, True]}}
    text = json.dumps({**content, "user_data": data})
    for cut in range(len(text)):
        path = written(tmp_path / "a.json", text[:cut])
        with pytest.raises(ValueError, match="is cut off: it ends in the middle of"):
            list(read_users(path))


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """One user's lists and floats at a time; all of the larger file's would be 40 MB."""
    monkeypatch.setattr(leaf, "CHUNK", 1 << 16)

    def peak(users):
        path = written(tmp_path / "a.json", shard(**{f"user{i}": 20 for i in range(users)}))
        tracemalloc.start()
        for _ in read_users(path):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(4), peak(80)
    assert many < 1.2 * few
    assert many < 2_000_000


# --- mistakes


def assert_sentence(path, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        list(read_users(path))
    assert str(path) in str(error.value)


MISTAKES = {
    "short row": (lambda c: c["user_data"]["ada"]["x"][1].pop(),
                  "user 'ada': x[1] is 783 numbers; expected 784 numbers, 28x28"),
    "no row": (lambda c: c["user_data"]["ada"]["x"].__setitem__(0, "pixels"),
               "user 'ada': x[0] is \"pixels\"; expected 784 numbers"),
    "bytes": (lambda c: c["user_data"]["ada"]["x"][1].__setitem__(7, 255),
              "user 'ada': x[1][7] is 255; pixels must be from 0 to 1"),
    "nan": (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(7, float("nan")),
            "user 'bob': x[0][7] is nan; pixels must be from 0 to 1"),
    "text": (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(7, "0.5"),
             "user 'bob': x holds something that is not a number"),
    "nested": (lambda c: c["user_data"]["bob"]["x"][0].__setitem__(7, [1, 2]),
               "user 'bob': x holds something that is not a number"),
    "large label": (lambda c: c["user_data"]["ada"]["y"].__setitem__(1, 62),
                    "user 'ada': y[1] is 62; labels must be whole, from 0 to 61"),
    "half label": (lambda c: c["user_data"]["ada"]["y"].__setitem__(1, 1.5),
                   "user 'ada': y[1] is 1.5; labels must be whole, from 0 to 61"),
    "true label": (lambda c: c["user_data"]["bob"].__setitem__("y", [True]),
                   "user 'bob': y holds something that is not a number"),
    "lengths": (lambda c: c["user_data"]["ada"]["y"].append(1),
                "user 'ada': x has 2 images, but y has 3 labels"),
    "no labels": (lambda c: c["user_data"]["bob"].pop("y"),
                  "user 'bob': expected an object with the lists \"x\" and \"y\""),
    "no object": (lambda c: c["user_data"].__setitem__("bob", [1]),
                  "user 'bob': expected an object with the lists \"x\" and \"y\""),
    "no users": (lambda c: c.pop("users"),
                 "expected 'users' as LEAF writes it, but there is none"),
    "odd sizes": (lambda c: c.__setitem__("num_samples", 3),
                  "expected 'num_samples' as LEAF writes it, but it is 3"),
    "no data": (lambda c: c.pop("user_data"),
                "expected 'user_data' as LEAF writes it, but there is none"),
    "sizes": (lambda c: c["num_samples"].pop(), "2 'users', but 1 'num_samples'"),
    "count": (lambda c: c["num_samples"].__setitem__(0, 5),
              "user 'ada' has 2 samples, but 'num_samples' says 5"),
    "unknown": (lambda c: c["user_data"].pop("bob"),
                "user \"bob\" is in 'users', but not in 'user_data'"),
    "unnamed": (lambda c: (c["users"].pop(), c["num_samples"].pop()),
                "user 'bob' is in 'user_data', but not in 'users'"),
    "twice": (lambda c: (c["users"].append("ada"), c["num_samples"].append(2)),
              "user 'ada' is in 'users' twice"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_name_file_and_user(tmp_path, change, sentence):
    content = shard(ada=2, bob=1)
    change(content)
    path = written(tmp_path / "a.json", content)
    assert_sentence(path, sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is cut off: it ends in the middle of the file"),
        ("[1]", "is not JSON at character 0, in the file: expected {, got ["),
        ('{"users": [1 2], "user_data": {}}', "is not JSON at character 13, in 'users': Expecting"),
        ('{"user_data": {"a": {"x": [[0,, 1', "in user 'a': Expecting value"),
        ('{"user_data": {"a": {"x": [[0, 0.', "is cut off: it ends in the middle of user 'a'"),
        ('{"user_data": {"a": {"x": "0, 0.5', "is cut off: it ends in the middle of user 'a'"),
        ('{"user_data": {"a": {"x": [], "y": []}, "a": {', "user 'a' is in 'user_data' twice"),
        ('{"user_data": {a: 3', "is not JSON at character 15, in 'user_data': expected a name"),
        ("{} {}", "is not JSON at character 3, in the file: there is more after the end"),
        ('{"x": ' + "[" * 100_000, "in 'x': maximum recursion depth exceeded"),
        ('{"x": ' + "1" * 5000 + "}", "in 'x': Exceeds the limit (4300"),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_what_is_not_json(tmp_path, text, sentence, chunk, monkeypatch):
    monkeypatch.setattr(leaf, "CHUNK", chunk)
    path = written(tmp_path / "a.json", text)
    assert_sentence(path, sentence)


def test_a_mistake_early_in_a_file_is_found_early(tmp_path):
    """Not after all of it has been read for want of an end."""
    path = written(tmp_path / "a.json", '{"user_data": {"a": {"x": [[0 1]]}' + " " * 8_000_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="user 'a': Expecting ',' delimiter"):
        list(read_users(path))
    assert tracemalloc.get_traced_memory()[1] < 6_000_000
    tracemalloc.stop()


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="cannot read .*no.json: No such file"):
        list(read_users(tmp_path / "no.json"))
    (tmp_path / "a.json").write_bytes(b'{"users": ["\xff"]}')
    with pytest.raises(ValueError, match="a.json is not text in UTF-8"):
        list(read_users(tmp_path / "a.json"))
