"""One federation over slow links: what it sends and how long it takes to a target accuracy."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from network import HOST, Links, Traffic

from fetchsgd.errors import UserError
from fetchsgd.flower.processes import Federation

HERE = Path(__file__).parent
APP = HERE / "app"
LOOK = 0.02  # seconds between looks: little of the next round must pass meanwhile
JOIN_LIMIT = 120.0
ROUND_LIMIT = 300.0


def idle(links: Links, seconds: float) -> dict[str, Any]:
    """What nodes without work send and get, in bytes a second and a link."""
    before = links.traffic()
    time.sleep(seconds)
    passed = links.traffic() - before
    each = seconds * links.count
    return {
        way: {"frames": part.bytes / each, "contents": part.contents / each}
        for way, part in (("up", passed.up), ("down", passed.down))
    }


def start_nodes(federation: Federation, links: Links) -> None:
    """A SuperNode at the end of each link, and all of them connected."""
    names = [f"node{link}" for link in range(links.count)]
    for link, name in enumerate(names):
        federation.start_node(name, f"partition-id={link}", inside=links.inside(link))
    wait(
        lambda: all("SuperNode ID" in federation.log(name) for name in names),
        "SuperNodes to connect", JOIN_LIMIT,
    )  # fmt: skip


def wait(condition: Callable[[], bool], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise UserError(f"waited {seconds:g} s for {what}, without success")
        time.sleep(LOOK)


def train(
    federation: Federation, links: Links, settings: Mapping[str, Any], out: Path, target: float
) -> tuple[dict[str, Any], Traffic]:
    """Run until a round reaches the target, or to the end; its line, and the traffic by then.

    Traffic counts from the moment at which the run is submitted, so it includes introductions.
    """
    before = links.traffic()
    shared = {"federation.out": str(out), "federation.clients": links.count}
    process = federation.start_run(APP, {**settings, **shared})
    metrics, line = out / "metrics.jsonl", {}
    seen, last = 0, time.monotonic()
    while line.get("accuracy", 0.0) < target:
        ended = process.poll() is not None
        lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
        whole = [text for text in lines if text.endswith("\n")]
        if len(whole) > seen:
            passed = links.traffic() - before
            line, seen, last = json.loads(whole[-1]), len(whole), time.monotonic()
        elif ended:
            break
        if time.monotonic() > last + ROUND_LIMIT:
            raise UserError(f"no round in {ROUND_LIMIT:g} s: {federation.log('run')[-2000:]}")
        time.sleep(LOOK)
    if not line:
        raise UserError(f"the run has ended without a round: {federation.log('run')[-2000:]}")
    return line, passed


def measure(
    links: Links, settings: Mapping[str, Any], target: float, idle_seconds: float = 0.0
) -> dict[str, Any]:
    """A whole federation of its own, from its start to its end."""
    with (
        tempfile.TemporaryDirectory(prefix="fetchsgd-links-") as folder,
        Federation(Path(folder) / "flower", {"PYTHONPATH": str(HERE)}, host=HOST) as federation,
    ):
        start_nodes(federation, links)
        row: dict[str, Any] = {}
        if idle_seconds:
            row["idle"] = idle(links, idle_seconds)
        line, passed = train(federation, links, settings, Path(folder) / "run", target)
    return row | as_row(line, passed)


def as_row(line: Mapping[str, Any], passed: Traffic) -> dict[str, Any]:
    """Bytes of all clients, each way: frames, without headers, payloads, and as the ledger has."""
    row = {key: line[key] for key in ("round", "accuracy", "seconds")}
    row |= {name: line[f"federation/{name}"] for name in ("asked", "replies", "failed")}
    for way, name, frames in (("up", "upload", passed.up), ("down", "download", passed.down)):
        row[way] = {
            "frames": frames.bytes,
            "packets": frames.packets,
            "contents": frames.contents,
            "payloads": line[f"measured_{name}_bytes"],
            "ledger": line[f"wire_{name}_bytes"],
        }
    return row
