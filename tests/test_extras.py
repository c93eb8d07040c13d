"""Every package that an extra brings is known to come from it; pins suit the oldest Python."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

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


def test_what_is_pinned_runs_on_the_oldest_python():
    """Debian 12 has Python 3.11.2: a pin that needs 3.11.5 would end `make setup` there."""
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text()
    oldest = re.search(r"\d+\.\d+", PROJECT["requires-python"])[0] + ".0"
    seen, too_new = 0, []
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", pins, re.MULTILINE):
        try:
            about = metadata(name)
        except PackageNotFoundError:  # for another platform, or an extra that is not here
            continue
        seen += 1
        needs = about.get("Requires-Python", "")
        if about["Version"].partition("+")[0] == version and oldest not in SpecifierSet(needs):
            too_new.append(f"{name} {version} needs Python {needs}")
    assert seen > 50
    assert not too_new
