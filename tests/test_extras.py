"""Every package that an extra brings is known to come from it."""

import re
import tomllib
from pathlib import Path

import pytest

from fetchsgd.extras import EXTRAS, how_to_install

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "dp-accounting": "dp_accounting",
    "prometheus-client": "prometheus_client",
    "scikit-learn": "sklearn",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_those_of_the_project(extra):
    packages = {
        re.match(r"[A-Za-z0-9_-]+", line)[0] for line in PROJECT["optional-dependencies"][extra]
    }
    missing = {IMPORTED_AS.get(package, package) for package in packages}
    for package in missing:
        assert f"{package} is not installed" in how_to_install(f"{package}.some.module")


def test_a_package_of_nobody():
    assert how_to_install("tinytask") is None
    assert how_to_install(None) is None
