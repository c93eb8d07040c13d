"""What is released: built twice to equal bytes, and run from the wheel alone.

    python tools/check_package.py

The second build is of a copy of the files elsewhere, by another umask and in another time zone.
Then the wheel goes into an environment of its own that has the dependencies of this one, but
nothing of this checkout, and there the README's Python and the command line run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import torch
from package import ROOT, package

# Runs a file, then says which files of the package were imported.
RUNNER = """
import runpy, sys
runpy.run_path(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "fetchsgd" and getattr(module, "__file__", None):
        print("imported", module.__file__)
"""


def digests(files: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def copied_files(to: Path) -> Path:
    """What git would commit, in a folder of another name."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


def built_elsewhere(scratch: Path) -> list[Path]:
    before, zone = os.umask(0o077), os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Auckland"
    try:
        return package(copied_files(scratch / "another name"), scratch / "second")
    finally:
        os.umask(before)
        os.environ.pop("TZ")
        if zone is not None:
            os.environ["TZ"] = zone


def check_contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, and no other."""
    folder = ROOT / "src/fetchsgd"
    wanted = {
        f"fetchsgd/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as files:
        held = {name for name in files.namelist() if ".dist-info/" not in name}
    if held != wanted:
        sys.exit(f"the wheel lacks, or has too much of: {sorted(held ^ wanted)}")


def clean_environment(folder: Path, wheel: Path) -> Path:
    """An environment that has the wheel, and dependencies from where torch is."""
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    # Only now, or pip would take the package of this checkout for the one that is to be replaced.
    # Paths in .pth files are not searched for .pth files, so editable packages stay outside.
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return python


def run(command: list[str], folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment.setdefault("OMP_NUM_THREADS", "1")  # as quick, and kind to others
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_readme(python: Path, scratch: Path) -> None:
    """The README's Python runs, with nothing but the wheel's files."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for number, block in enumerate(blocks):
        program, runner = scratch / f"readme{number}.py", scratch / "runner.py"
        program.write_text(block)
        runner.write_text(RUNNER)
        printed = run([str(python), "-I", str(runner), str(program)], scratch)
        files = re.findall(r"^imported (.*)$", printed, re.M)
        foreign = [file for file in files if not Path(file).is_relative_to(python.parents[1])]
        if not files or foreign:
            sys.exit(f"the README's Python imported {foreign or 'nothing'} of the package")
        print(re.sub(r"^imported .*\n", "", printed, flags=re.M), end="")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        files = package(ROOT, ROOT / "dist")
        if digests(files) != digests(built_elsewhere(scratch)):
            sys.exit("two builds of the same files differ")
        check_contents(files[1])
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], scratch)
        python = clean_environment(scratch / "clean", files[1])
        check_readme(python, scratch)
        run([str(python.with_name("fetchsgd")), "methods"], scratch)
        for file, digest in digests(files).items():
            print(digest, file)


if __name__ == "__main__":
    main()
