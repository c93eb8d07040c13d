import subprocess
import sys


def test_importing_loads_no_compiler():
    """numba and Triton take longer to import than all the rest; only their kernels load them."""
    code = "import fetchsgd, sys; sys.exit(bool({'numba', 'triton'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
