"""Whole runs with sums modulo 2^b: they train, are recorded and resumed, and refuse what cannot."""

import pytest
import torch
from tinytask import tiny  # noqa: F401

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
