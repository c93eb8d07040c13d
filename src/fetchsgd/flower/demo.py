"""A federation on this machine, in one command: SuperLink, three SuperNodes and a run on digits.

    python -m fetchsgd.flower.demo --out runs/demo-federated

Everything that Flower writes goes to a temporary folder; the run folder is what stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from fetchsgd.errors import UserError
from fetchsgd.extras import how_to_install
from fetchsgd.flower.processes import Federation
from fetchsgd.formatting import format_bytes

APP = Path("examples/flower_app")
NODES = 3
LIMIT = 900.0  # seconds


def demo(out: Path, app: Path, rounds: float) -> None:
    """Start everything, show the run's log, end everything, say what came out."""
    if not (app / "pyproject.toml").exists():
        raise UserError(
            f"there is no Flower app in {app}; run this from the checkout, or give --app"
        )
    if (out / "result.json").exists():
        shutil.rmtree(out)  # of an earlier demo; an unfinished run is resumed
    settings = {"federation.out": str(out.resolve()), "train.epochs": rounds}
    with (
        tempfile.TemporaryDirectory(prefix="fetchsgd-federation-") as folder,
        Federation(Path(folder)) as federation,
    ):
        print(f"a SuperLink on {federation.address} and {NODES} SuperNodes", flush=True)
        federation.start_nodes(NODES)
        process = federation.start_run(app, settings)
        shown, end = 0, time.monotonic() + LIMIT
        while True:
            ended = process.poll() is not None
            text = federation.log("run")
            print(text[shown:], end="", flush=True)
            shown = len(text)
            if ended or time.monotonic() > end:
                break
            time.sleep(0.2)
    if not (out / "result.json").exists():
        raise UserError(f"the run has failed; the log above says why. {out} can be resumed")
    tell(out)


def tell(out: Path) -> None:
    result = json.loads((out / "result.json").read_text())
    counts = result["federation"]["counts"]
    print(f"\n{result['metric']} {result['value']:.4f} after {result['rounds']} rounds")
    print(f"{counts['replies']} replies accepted, {counts['late']} late")
    for way, name in (("upload", "received_bytes"), ("download", "sent_bytes")):
        measured, ledger = format_bytes(counts[name]), format_bytes(result[f"wire_{way}_bytes"])
        times = result[f"wire_{way}_compression"]
        print(f"{way}: {measured} measured, {ledger} in the ledger, {times:.3g}x less than float32")
    print(f"the run folder is {out}; `fetchsgd report {out}` makes a page of it")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fetchsgd.flower.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("runs/demo-federated"))
    parser.add_argument("--app", type=Path, default=APP)
    parser.add_argument("--rounds", type=float, default=8.0)
    given = parser.parse_args()
    if find_spec("flwr") is None:
        sys.exit(f"error: {how_to_install('flwr')}")
    signal.signal(signal.SIGTERM, _stop)  # so that all processes are ended then as well
    try:
        demo(given.out, given.app, given.rounds)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; all processes have been ended")


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
