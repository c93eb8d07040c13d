"""A federation on this machine, in one command: SuperLink, three SuperNodes and a run on digits.

    python -m fetchsgd.flower.demo --out runs/demo-federated
    python -m fetchsgd.flower.demo --private --out runs/demo-private

The second has four clients, secure aggregation and noise by the clients, and says what the server
saw. Everything that Flower writes goes to a temporary folder; the run folder is what stays.
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
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.extras import how_to_install
from fetchsgd.flower.processes import Federation
from fetchsgd.formatting import format_bytes

APP = Path("examples/flower_app")
NODES, PRIVATE_NODES = 3, 4
ROUNDS, PRIVATE_ROUNDS = 8.0, 3.0
LIMIT = 900.0  # seconds
SEEN = "sees of"  # in lines of secure/show.py
# Sums modulo 2^12 by secure aggregation, with noise; the log shows what the server sees of two.
PRIVATE = (
    "task.split=iid task.examples_per_client=100 upload.sum=modular upload.secure=true "
    "upload.sum_bits=12 privacy.mode=distributed privacy.mechanism=skellam privacy.noise=0.1 "
    "federation.show=2 federation.phase_deadline=60"
)


def demo(out: Path, app: Path, rounds: float | None, private: bool = False) -> None:
    """Start everything, show the run's log, end everything, say what came out."""
    if not (app / "pyproject.toml").exists():
        raise UserError(
            f"there is no Flower app in {app}; run this from the checkout, or give --app"
        )
    if (out / "result.json").exists():
        shutil.rmtree(out)  # of an earlier demo; an unfinished run is resumed
    nodes, usual = (PRIVATE_NODES, PRIVATE_ROUNDS) if private else (NODES, ROUNDS)
    settings: dict[str, Any] = {
        "federation.out": str(out.resolve()), "train.epochs": usual if rounds is None else rounds,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="fetchsgd-federation-") as folder,
        Federation(Path(folder)) as federation,
    ):
        print(f"a SuperLink on {federation.address} and {nodes} SuperNodes", flush=True)
        if private:
            settings |= start_private_nodes(federation, Path(folder))
        else:
            federation.start_nodes(nodes)
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
    if private:
        tell_what_was_seen(text)


def start_private_nodes(federation: Federation, folder: Path) -> dict[str, Any]:
    """Nodes with keys and folders of their own; and the settings that they need."""
    from fetchsgd.flower.keys import make_identities

    keys = folder / "keys"
    make_identities(keys, PRIVATE_NODES)
    directory = keys / "directory.json"
    for client in range(PRIVATE_NODES):
        config = (
            f'partition-id={client} identity="{keys / f"client-{client}"}" '
            f'directory="{directory}" state="{folder / f"state-{client}"}" secure=true'
        )
        federation.start_node(f"node{client}", config)
    return {
        "federation.clients": PRIVATE_NODES, "train.clients_per_round": PRIVATE_NODES,
        "upload.quantiser": "bits", "train.averaging": "uniform",
        "method.k": 2000, "method.cols": 2000,
        "settings": f"{PRIVATE} federation.directory={directory}",
    }  # fmt: skip


def tell_what_was_seen(log: str) -> None:
    """The last round's lines of secure/show.py."""
    lines = [line[line.index("what ") :] for line in log.splitlines() if SEEN in line]
    print("\nIn the last round:")
    for line in lines[-3:]:
        print(f"  {line}")
    print(
        "Each client's numbers are hidden by masks that cancel in the sum alone, and one client in "
        "the sum by noise.\nOf four clients, noise that promises a small epsilon would hide what "
        "they have in common, too: it takes hundreds.\ndocs/privacy.md says what is protected, "
        "against whom."
    )


def tell(out: Path) -> None:
    result = json.loads((out / "result.json").read_text())
    counts = result["federation"]["counts"]
    print(f"\n{result['metric']} {result['value']:.4f} after {result['rounds']} rounds")
    print(f"{counts['replies']} replies accepted, {counts['late']} late")
    for way, name in (("upload", "received_bytes"), ("download", "sent_bytes")):
        measured, ledger = format_bytes(counts[name]), format_bytes(result[f"wire_{way}_bytes"])
        times = result[f"wire_{way}_compression"]
        print(f"{way}: {measured} measured, {ledger} in the ledger, {times:.3g}x less than float32")
    if "epsilon" in result:
        print(f"epsilon {result['epsilon']:.3g} at delta {result['delta']:g}")
    print(f"the run folder is {out}; `fetchsgd report {out}` makes a page of it")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fetchsgd.flower.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path)
    parser.add_argument("--app", type=Path, default=APP)
    parser.add_argument("--rounds", type=float)
    parser.add_argument("--private", action="store_true", help="with secure aggregation")
    given = parser.parse_args()
    out = given.out or Path("runs/demo-private" if given.private else "runs/demo-federated")
    if find_spec("flwr") is None:
        sys.exit(f"error: {how_to_install('flwr')}")
    signal.signal(signal.SIGTERM, _stop)  # so that all processes are ended then as well
    try:
        demo(out, given.app, given.rounds, given.private)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; all processes have been ended")


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
