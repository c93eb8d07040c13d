import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")


def test_a_greeting_loads_no_torch():
    """Flower starts a process for every message, and torch takes most of its time."""
    code = "import fetchsgd.flower.client, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
