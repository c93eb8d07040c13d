"""What the site is made with: docstrings as Sphinx reads them, links, which names are public."""

import gzip
import importlib
import io
import tarfile
from pathlib import Path

import pytest

from fetchsgd import CountSketch
from fetchsgd.errors import UserError

pytest.importorskip("sphinx")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch):
    for folder in ("docs", "docs/extensions", "tools"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("The norm |x| of `x`, times a_*.", "The norm \\|x\\| of ``x``, times a\\_\\*."),
        ("a       first\nbc      second", "::\n\n    a       first\n    bc      second"),
        ("    x = 1\n\n    y = 2", "::\n\n        x = 1\n    \n        y = 2"),
        ("k: how many\n    are sent\nrho: less", "- ``k``: how many are sent\n\n- ``rho``: less"),
        ("Args:\n    k: how many", "**Args**\n\n- ``k``: how many"),
        ("Raises:\n    UserError: if so", "**Raises**\n\n- ``UserError``: if so"),
        ("Returns:\n    A number.", "**Returns**\n\nA number."),
        ("- one\n  goes on\n- two", "- one goes on\n\n- two"),
        (">>> 1 + 1\n2", ">>> 1 + 1\n2"),
        ("FetchSGD: a title", "FetchSGD: a title"),
    ],
)
def test_docstrings_are_plain_text(load, given, written):
    lines = load("plain_docstrings").as_restructured(given.split("\n"))
    assert "\n".join(lines).strip() == written


def test_links_to_missing_files_and_places_are_found(load, tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">1</a><a href="b.html#no">2</a><a href="c.html">3</a>'
        '<a href="https://example.org/c.html">4</a><a href="#here">5</a></p>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    found = load("check_site").dead_links(tmp_path)
    assert found == [
        "a.html links to b.html#no: there is no such place",
        "a.html links to c.html: there is no such file",
    ]


def test_every_public_module_has_a_page(load):
    modules = load("public_modules")
    pages = [f"docs/api/{path.stem}" for path in (ROOT / "docs/api").glob("*.md")]
    assert {modules.module_of_page(page) for page in pages} == set(modules.PUBLIC)


def test_a_name_that_two_modules_offer_has_one_home(load):
    home_of = load("public_modules").home_of
    assert home_of(CountSketch) == "fetchsgd.sketch.CountSketch"
    assert home_of(UserError) == "fetchsgd.errors.UserError"


def test_an_sdist_says_nothing_of_who_packed_it_and_when(load, tmp_path):
    packed = []
    for user, order in (("ann", ("a", "b")), ("bob", ("b", "a"))):
        path = tmp_path / f"{user}.tar.gz"
        with tarfile.open(path, "w:gz") as files:
            for name in order:
                entry = tarfile.TarInfo(name)
                entry.uname, entry.mtime, entry.size = user, len(packed) + 10**9, 1
                entry.mode = 0o600 if user == "ann" else 0o664
                files.addfile(entry, io.BytesIO(name.encode()))
        packed.append(load("package").packed_again(path))
    assert packed[0] == packed[1]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed[0]))) as files:
        assert [files.extractfile(name).read() for name in ("a", "b")] == [b"a", b"b"]
