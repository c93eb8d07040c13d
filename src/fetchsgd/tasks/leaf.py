"""LEAF's JSON files, read one user at a time (FEMNIST in appendix A.2 is what LEAF writes).

A shard is one object,

    {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}, ...}}

of some 100 MB, and as Python's own lists and floats it would take ten times that. So the text is
read in pieces and one user's object is parsed at a time, by json's own scanner, and becomes bytes
before the next is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

PIXELS = 28 * 28
CLASSES = 62  # digits, upper-case and lower-case letters
CHUNK = 1 << 20  # characters that are read at once; a user of FEMNIST has about as many
DECODER = json.JSONDecoder()
BLANKS = re.compile(r"[ \t\n\r]*")
CLOSING = {"{": "}", "[": "]", '"': '"'}
# What json leaves over where a number, a word (-Infinity) or an escape (\u1234) is cut off.
REST = re.compile(r"[-+.\\\w]{0,10}")

User = tuple[str, UInt8[np.ndarray, "n 784"], UInt8[np.ndarray, " n"]]


def read_users(path: Path) -> Iterator[User]:
    """Each user of a shard: name, pixels from 0 to 255, labels. A user may have no samples.

    That the lists of users and of their sizes agree with the data is known only at the end.
    """
    lists: dict[str, Any] = {}
    counts: dict[str, int] | None = None
    with scanning(path) as scanner:
        for name in scanner.members("the file"):
            if name != "user_data":
                lists[name] = scanner.value(f"{name!r}")
                continue
            counts = {}
            for user in scanner.members("'user_data'"):
                if user in counts:
                    raise ValueError(f"{path}: user {user!r} is in 'user_data' twice")
                data = scanner.value(f"user {user!r}")
                images, labels = samples_of(f"{path}, user {user!r}", data)
                counts[user] = len(labels)
                yield user, images, labels
        scanner.end()
    check_lists(path, lists.get("users"), lists.get("num_samples"), counts)


@contextmanager
def scanning(path: Path) -> Iterator[Scanner]:
    """A scanner of a file that is closed in the end; sentences for files that cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield Scanner(path, file)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8, as JSON must be: {error.reason}") from error


class Scanner:
    """A JSON text that is read in pieces. What has been taken is let go of."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file = path, file
        self.text, self.at, self.ended = "", 0, False
        self.gone = 0  # characters before self.text

    def members(self, what: str) -> Iterator[str]:
        """The names in an object. Take the value of each before asking for the next name."""
        self._pass("{", what)
        if self._peek() == "}":
            self._pass("}", what)
            return
        while True:
            if self._peek() not in ('"', ""):
                raise self._wrong('expected a name in "', what)
            name = self.value(what)
            self._pass(":", what)
            yield name
            if self._pass(",}", what) == "}":
                return

    def value(self, what: str) -> Any:
        """The next value, whole."""
        closing = CLOSING.get(self._peek(), "")
        looked = self.at
        size = CHUNK
        while True:
            # Parsing from the start again and again would be slow where pieces are small.
            if self.ended or self.text.find(closing, looked) >= 0:
                found = self._parse(what)
                if found is not None:
                    return found[0]
            looked = len(self.text) - self.at
            self._read(size)
            size *= 2

    def end(self) -> None:
        """Nothing but blanks may follow."""
        if self._peek():
            raise self._wrong("there is more after the end of the object", "the file")

    def _parse(self, what: str) -> tuple[Any] | None:
        """The value here; None if more must be read to know."""
        try:
            value, end = DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or REST.fullmatch(self.text, error.pos)
            if not is_cut:
                raise self._wrong(error.msg, what, error.pos) from error
            if self.ended:
                raise self._cut_off(what) from error
            return None
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits, [[[[[[...
            raise self._wrong(str(error), what) from error
        if not self.ended and REST.fullmatch(self.text, end):
            return None  # 1 may go on as 12, and 1. as 1.2
        self.at = end
        return (value,)

    def _pass(self, wanted: str, what: str) -> str:
        """Go past the next character, which must be one of those wanted."""
        found = self._peek()
        if not found:
            raise self._cut_off(what)
        if found not in wanted:
            raise self._wrong(f"expected {' or '.join(wanted)}, got {found}", what)
        self.at += 1
        return found

    def _peek(self) -> str:
        """The next character that is not blank; nothing at the end."""
        while True:
            blanks = BLANKS.match(self.text, self.at)
            assert blanks is not None
            self.at = blanks.end()
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._read(CHUNK)

    def _read(self, size: int) -> None:
        more = self.file.read(size)
        self.ended = not more
        self.gone += self.at
        self.text = self.text[self.at :] + more
        self.at = 0

    def _wrong(self, why: str, what: str, at: int | None = None) -> ValueError:
        place = self.gone + (self.at if at is None else at)
        return ValueError(f"{self.path} is not JSON at character {place}, in {what}: {why}")

    def _cut_off(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is cut off: it ends in the middle of {what}")


def samples_of(where: str, data: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A user's images and labels, checked."""
    rows, labels = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not isinstance(rows, list) or not isinstance(labels, list):
        sentence = f'{where}: expected an object with the lists "x" and "y"'
        raise ValueError(sentence)  # noqa: TRY004 (the file is wrong, not a caller)
    if len(rows) != len(labels):
        raise ValueError(f"{where}: x has {len(rows)} images, but y has {len(labels)} labels")
    return pixels_of(where, rows), labels_of(where, labels)


def pixels_of(where: str, rows: list[Any]) -> UInt8[np.ndarray, "n 784"]:
    """Bytes, from numbers between 0 and 1."""
    for place, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != PIXELS:
            found = f"{len(row)} numbers" if isinstance(row, list) else shown(row)
            raise ValueError(f"{where}: x[{place}] is {found}; expected {PIXELS} numbers, 28x28")
    values = numbers(f"{where}: x", rows, (len(rows), PIXELS))
    good = (values >= 0) & (values <= 1)  # not where a value is NaN
    if not good.all():
        place, pixel = np.argwhere(~good)[0]
        raise ValueError(
            f"{where}: x[{place}][{pixel}] is {values[place, pixel]:g}; pixels must be from 0 to 1"
        )
    levels: NDArray[np.uint8] = np.rint(255 * values).astype(np.uint8)
    return levels


def labels_of(where: str, labels: list[Any]) -> UInt8[np.ndarray, " n"]:
    values = numbers(f"{where}: y", labels, (len(labels),))
    good = (values >= 0) & (values < CLASSES)
    good &= np.rint(np.where(good, values, 0)) == np.where(good, values, 0)
    if not good.all():
        place = np.flatnonzero(~good)[0]
        raise ValueError(
            f"{where}: y[{place}] is {values[place]:g}; labels must be whole, "
            f"from 0 to {CLASSES - 1}"
        )
    return values.astype(np.uint8)


def numbers(where: str, values: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The lists as an array. Texts that read as numbers, true and null are not numbers."""
    if not values:
        return np.empty(shape)
    try:
        array = np.array(values)
    except ValueError:  # lists of different lengths, further in
        array = np.empty(0)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise ValueError(f"{where} holds something that is not a number")
    return array


def check_lists(path: Path, users: Any, sizes: Any, counts: dict[str, int] | None) -> None:
    """The lists at the top must tell of the same users and samples as the data."""
    named = {"users": users, "num_samples": sizes, "user_data": counts}
    for name, value in named.items():
        if not isinstance(value, dict if name == "user_data" else list):
            found = "there is none" if value is None else f"it is {shown(value)}"
            sentence = f"{path}: expected {name!r} as LEAF writes it, but {found}"
            raise ValueError(sentence)  # noqa: TRY004 (the file is wrong, not a caller)
    assert counts is not None
    if len(users) != len(sizes):
        raise ValueError(f"{path}: {len(users)} 'users', but {len(sizes)} 'num_samples'")
    told: dict[str, Any] = {}
    for user, size in zip(users, sizes, strict=True):
        if not isinstance(user, str) or user not in counts:
            raise ValueError(f"{path}: user {shown(user)} is in 'users', but not in 'user_data'")
        if user in told:
            raise ValueError(f"{path}: user {user!r} is in 'users' twice")
        if size != counts[user]:
            raise ValueError(
                f"{path}: user {user!r} has {counts[user]} samples, "
                f"but 'num_samples' says {shown(size)}"
            )
        told[user] = size
    if missing := counts.keys() - told.keys():
        raise ValueError(f"{path}: user {min(missing)!r} is in 'user_data', but not in 'users'")


def shown(value: Any) -> str:
    """A value as JSON, or its beginning."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
