"""Builds the sdist and, from it, the wheel: equal bytes for equal files, wherever and by whom.

    python tools/package.py --out dist

setuptools writes the time, the user and the umask into an sdist; it is packed again without them.
Dates are those of SOURCE_DATE_EPOCH, and the first day that a zip file can name if it is not set.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_DAY = 315532800  # 1 January 1980


def date() -> int:
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_DAY)), FIRST_DAY)


def build(what: str, source: Path, out: Path) -> Path:
    """One file, by setuptools, with the packages of this environment."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(date())}
    command = [sys.executable, "-m", "build", f"--{what}", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(
        [*command, str(source)], env=environment, umask=0o022, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"the {what} could not be built:\n{done.stdout}{done.stderr}")
    return max(out.glob("*.whl" if what == "wheel" else "*.tar.gz"))


def packed_again(sdist: Path) -> bytes:
    """The same files in order of name, owned by nobody, of one date, readable by all."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as given, tarfile.open(fileobj=packed, mode="w") as new:
        for entry in sorted(given.getmembers(), key=lambda entry: entry.name):
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = date()
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.pax_headers = {}
            new.addfile(entry, given.extractfile(entry) if entry.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=date())


def package(source: Path, out: Path) -> list[Path]:
    """The sdist and the wheel of a source tree."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sdist = build("sdist", source, Path(scratch))
        kept = out / sdist.name
        kept.write_bytes(packed_again(sdist))
        with tarfile.open(kept) as files:
            files.extractall(scratch, filter="data")
        wheel = build("wheel", Path(scratch, sdist.name.removesuffix(".tar.gz")), out)
    return [kept, wheel]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    for path in package(ROOT, parser.parse_args().out):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)


if __name__ == "__main__":
    main()
