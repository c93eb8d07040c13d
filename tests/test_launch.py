"""Every Triton program starts on the GPU that holds its data."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from fetchsgd.launch import launch
from fetchsgd.methods import largest
from fetchsgd.quantisers import levels
from fetchsgd.sketch import CountSketch

SOURCE = Path(__file__).parents[1] / "src" / "fetchsgd"
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]


@triton.jit
def double(out, x, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_runs_over_its_grid_with_its_constants(device):
    x = torch.arange(100.0, device=device)
    out = torch.zeros_like(x)
    launch(double, (4,), out, x, 100, SPAN=32)
    assert torch.equal(out, 2 * x)


def test_programs_compile_where_there_is_no_gpu():
    """The interpreter, in which they are tested elsewhere, takes more than the compiler does."""
    script = Path(__file__).with_name("compile_programs.py")
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script], env=plain, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) >= 20


def direct_launches(source: str) -> list[int]:
    """Lines with `program[grid](...)`: a call of a subscript of a program."""
    tree = ast.parse(source)
    programs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [(f"{node.module}.{alias.name}", alias) for alias in node.names]
            programs |= {alias.asname or alias.name for path, alias in names if "programs" in path}
        if isinstance(node, ast.arg | ast.Name) and "program" in ast.unparse(node):
            programs.add(ast.unparse(node).split(":")[0])
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and ast.unparse(node.func.value).split(".")[0] in programs
    ]


def test_no_program_is_launched_without_the_helper():
    for path in SOURCE.rglob("*.py"):
        if path != SOURCE / "launch.py":
            assert not direct_launches(path.read_text()), path


@pytest.mark.parametrize(
    "line",
    [
        "from fetchsgd.a import cuda_programs as programs\nprograms.add[(3,)](x)",
        "from fetchsgd.a import largest_programs\nlargest_programs.add[grid](x, N=2)",
        "from fetchsgd.a.walk_programs import walk_back\nwalk_back[(1,)](x)",
        "def run(program: Any, grid):\n    program[grid](x)",
    ],
)
def test_direct_launches_would_be_found(line):
    assert direct_launches(line) == [2]


def test_the_helper_itself_is_such_a_launch():
    assert len(direct_launches((SOURCE / "launch.py").read_text())) == 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, to use the second one")
class TestSecondGpu:
    """The current device stays cuda:0 throughout."""

    def test_sketch(self):
        x = torch.randn(5000, generator=torch.Generator().manual_seed(0))
        sketch = CountSketch(5000, 3, 700)
        table = sketch.sketch(x.to("cuda:1"))
        torch.testing.assert_close(table.cpu(), sketch.sketch(x), rtol=1e-4, atol=1e-4)
        there, here = sketch.top_k(table, 50), sketch.top_k(table.cpu(), 50)
        assert torch.equal(there.indices.cpu(), here.indices)
        assert torch.cuda.current_device() == 0

    def test_quantisers(self):
        cells = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
        streams = torch.arange(3)
        ours = levels.quantise_rows(cells.to("cuda:1"), 4, 7, streams)
        other = levels.quantise_rows(cells, 4, 7, streams)
        assert torch.equal(ours.symbols.cpu(), other.symbols)
        assert torch.equal(ours.histograms().cpu(), other.histograms())

    def test_largest(self):
        vectors = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
        chosen = largest.largest_mask(vectors.to("cuda:1"), 100)
        assert torch.equal(chosen.cpu(), largest.largest_mask(vectors, 100))
