import os
import subprocess
import sys
from pathlib import Path

import fetchsgd
from fetchsgd.extras import EXTRAS as BY_EXTRA

EXTRAS = [package for packages in BY_EXTRA.values() for package in packages]


def test_importing_loads_no_compiler():
    """numba and Triton take longer to import than all the rest; only their kernels load them."""
    code = "import fetchsgd, sys; sys.exit(bool({'numba', 'triton'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_is_listed_once():
    homes = [name for names in fetchsgd._HOMES.values() for name in names]
    assert sorted(homes) == sorted(fetchsgd.__all__)
    for name in fetchsgd.__all__:
        assert getattr(fetchsgd, name).__doc__, name
    assert set(fetchsgd.__all__) <= set(dir(fetchsgd))
    assert not hasattr(fetchsgd, "simulated")


def test_simulating_and_exchanging_need_no_extra():
    """Only with a folder, or a task that reads its data with scikit-learn."""
    code = f"""
import sys
for name in {EXTRAS!r}:
    sys.modules[name] = None
import fetchsgd as fs
from tinytask import tiny
assert fs.simulate(tiny(), "uncompressed", epochs=0.5).model is not None
plan = fs.Plan(tiny().model, "uncompressed")
assert fs.Server(plan).request(0)
try:
    fs.simulate(tiny(), "uncompressed", folder="run")
except ModuleNotFoundError as error:
    assert "fetchsgd[sim]" in error.__notes__[0]
else:
    raise SystemExit("a folder needs safetensors")
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
