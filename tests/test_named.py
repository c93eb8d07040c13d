"""Names of ours, and names of the user's own."""

import pytest

from fetchsgd.errors import UserError
from fetchsgd.named import did_you_mean, find
from fetchsgd.vector import SparseVector

KNOWN = {"sparse": SparseVector}


def test_ours_and_the_users_own():
    assert find("shape", "sparse", KNOWN) is SparseVector
    assert find("shape", "fetchsgd.vector:SparseVector", KNOWN) is SparseVector
    assert find("shape", "os.path:join", {}, form="function")("a", "b").startswith("a")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "spars",
            "no shape 'spars'; did you mean 'sparse'. known are sparse, and your own as pack",
        ),
        ("round", "there is no shape 'round'; known are sparse, and your own as package.module:cl"),
        ("nowhere.at.all:Shape", "shape 'nowhere.*': cannot import 'nowhere'; is it on the path?"),
        ("os.path:Shape", "shape 'os.path:Shape': os.path has no class 'Shape'"),
        ("os.path:join", "'join' in os.path must be a class, got <function join"),
        ("..path:Shape", "'..path' is not the name of a module"),
        ("os.path:", "os.path has no class ''"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(UserError, match=message):
        find("shape", name, KNOWN)


def test_did_you_mean():
    assert did_you_mean("epoch", ["epochs", "seed"]) == "; did you mean 'epochs'?"
    assert did_you_mean("x", ["seed", "epochs"]) == "; known are epochs, seed"
