"""Flower's own processes in tests: the app that they run, and where they find what runs here."""

import os
from pathlib import Path

import fetchsgd

TESTS = Path(__file__).parents[1]
APP = Path(__file__).parent / "troubled_app"
# The tests' tasks, and the very fetchsgd that is tested, wherever else one is installed.
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(fetchsgd.__file__).parents[1])])}
