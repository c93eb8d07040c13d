"""Bytes are counted where no package for keys is installed, as simulations do."""

import subprocess
import sys

PROGRAM = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from fetchsgd.secure import parameters, protocol_bytes
from fetchsgd.sums import Modular

degree = parameters(50, 0.1, 0.1).degree
phases = protocol_bytes(50, degree, 2048, 8, 2).values()
counted = Modular(secure=True).protocol(50, 2048)
assert counted == (sum(p.up for p in phases), sum(p.down for p in phases)), counted
try:
    from fetchsgd.secure import Client
except ModuleNotFoundError as error:
    assert error.name == "cryptography"
else:
    raise AssertionError("the blocker blocks nothing")
"""


def test_counting_needs_no_package_for_keys():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
