"""Time and bytes to a target accuracy over links of 1 Mbit/s up and 10 Mbit/s down.

    make bench-links     (or: sudo .venv/bin/python benchmarks/links/run.py --out FILE.json)

Flower's real SuperLink and four SuperNodes, each at the end of a link of its own (network.py), once
for every method. A result is from the round that first reaches the target on the test set. Seconds
are the server's, from its start to that round's evaluation, and include the clients' introduction.
Bytes are counted where they pass, by the counters of the links: frames with all headers,
acknowledgements and polls. Beside them stand the contents of these frames, the payloads as the
server counts them, and the ledger's.

Settings are those that tune.py found in the simulator, on other seeds. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import environment
from measured import measure
from methods import CLIENTS, METHODS, MOST_ROUNDS, TARGET, run_settings
from network import Links, LinksError
from tables import renewed, show

from fetchsgd.errors import UserError

ROOT = Path(__file__).parents[2]
TUNED = ROOT / "benchmarks/results/links-tuning.json"
SEED = 0
IDLE_SECONDS = 30.0


def measure_all(names: list[str], out: Path | None) -> dict[str, Any]:
    """One method after another, over the same links; results are written after each."""
    chosen = json.loads(TUNED.read_text())["chosen"]
    about = environment("cpu") | {"flwr": importlib.metadata.version("flwr")}
    found: dict[str, Any] = {"about": about, "target": TARGET, "clients": CLIENTS, "rows": []}
    with Links(CLIENTS) as links:
        found["links"] = {"up": links.up, "down": links.down}
        for name in names:
            settings = run_settings(name, chosen[name], SEED, MOST_ROUNDS)
            row = measure(links, settings, TARGET, 0.0 if "idle" in found else IDLE_SECONDS)
            if "idle" in row:
                found["idle"] = row.pop("idle")
            row |= {"method": name, "settings": chosen[name], "load": round(os.getloadavg()[1], 2)}
            found["rows"].append(row)
            print(f"{name}: {row['accuracy']:.4f} in round {row['round']}, {row['seconds']:.0f} s")
            if out is not None:
                out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only these")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="a page whose tables are to be renewed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)  # so that everything is ended then, too
    if importlib.util.find_spec("flwr") is None:
        sys.exit("error: flwr is not installed here: pip install 'fetchsgd[flower,sim]'")
    try:
        found = measure_all(options.method or list(METHODS), options.out)
    except (UserError, LinksError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; all processes and links have been ended")
    show(found)
    up, down = (found["idle"][way]["frames"] for way in ("up", "down"))
    print(f"a client without work: {up:.0f} bytes/s up, {down:.0f} bytes/s down")
    if options.page is not None:
        options.page.write_text(renewed(options.page.read_text(), found))


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
