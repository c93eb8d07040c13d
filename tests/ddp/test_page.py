"""The tables on the page are what was measured, and what it says follows from them."""

import json
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/ddp"))  # for what the program imports, and no longer
TOOLS = runpy.run_path(str(ROOT / "benchmarks/ddp/page.py"))
sys.path.pop(0)
LOSSES, lines_of, links = TOOLS["LOSSES"], TOOLS["lines_of"], TOOLS["links"]
by_method, fewest_steps = TOOLS["by_method"], TOOLS["fewest_steps"]
renewed, seconds_to = TOOLS["renewed"], TOOLS["seconds_to"]

PAGE = (ROOT / "docs/ddp.md").read_text()
ROWS = by_method(lines_of("ddp-curves-h200.jsonl"))


def test_tables():
    assert renewed(PAGE) == PAGE
    assert len(re.findall("<!-- ddp ", PAGE)) >= 4


def test_resnet9_with_and_without_times_of_steps(tmp_path, monkeypatch):
    losses = [2.0 - step / 40 for step in range(60)]
    lines = [
        {"method": "plain", "lr": 0.1, "sent": 4e6, "loss": None, "test": 0.1, "losses": losses},
        {"method": "plain", "lr": 0.05, "sent": 4e6, "loss": 0.6, "test": 0.9, "losses": losses},
        {"method": "topk:0.1", "lr": 0.1, "sent": 1e6, "loss": None, "test": 0.1, "losses": []},
    ]
    names = TOOLS["resnet9"].__globals__
    for name in ("IMAGES", "IMAGE_LINKS"):
        monkeypatch.setitem(names, name, tmp_path / names[name].name)
    monkeypatch.setitem(names, "RESULTS", tmp_path)
    assert TOOLS["resnet9"]() == "Not measured yet."
    names["IMAGES"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    *_, plain, diverged = TOOLS["resnet9"]().splitlines()
    assert plain == "| `plain` | 4000 | 90.0 % | 0.05 | 40, 160 MB | 48, 192 MB | 56, 224 MB |  |"
    assert diverged == "| `topk:0.1` | 1000 | diverged |  |  |  |  |  |"
    timed = {"steps": [{"method": "plain", "rate": "100mbit", "seconds": 2.0}]}
    names["IMAGE_LINKS"].write_text(json.dumps(timed))
    assert "40, 160 MB, 80 s" in TOOLS["resnet9"]()


def fewest_bytes(kinds, loss):
    found = []
    for method, rows in ROWS.items():
        if method.split(":")[0] in kinds and (steps := fewest_steps(rows, loss)):
            found.append(steps * rows[0]["sent"])
    return min(found)


def test_bytes_beside_power_sgd():
    pairs = []
    for loss in LOSSES:
        ours, theirs = fewest_bytes(("sketch", "lowrank"), loss), fewest_bytes(("power",), loss)
        assert ours <= theirs / 3
        between = " MB instead of {} to {}" if not pairs else " instead of {} to {}"
        pairs.append(f"{ours / 1e6:.0f}" + between.format(f"{theirs / 1e6:.0f}", loss))
    assert ", ".join(pairs[:-1]) + ", and " + pairs[-1] in PAGE


def test_rates_of_learning():
    last = {(row["method"], row["lr"]): row["loss"] for rows in ROWS.values() for row in rows}
    sketch, power = "sketch:64:cells=int4", "power:4"
    assert f"ends at {last[sketch, 0.002]:.3f} instead of {last[power, 0.001]:.3f}" in PAGE
    assert f"({last[sketch, 0.001]:.3f} at 64x)" in PAGE
    gain, loss = (abs(last[name, 0.002] - last[name, 0.001]) for name in (sketch, power))
    assert f"it gains {gain:.2f}, and PowerSGD loses {loss:.2f}" in PAGE


def test_wall_clock():
    times = {run["method"]: seconds_to(run, 2.4) for run in links()["runs"]}
    ours, theirs = times["sketch:256:cells=int4:exact_below=0"], times["power:4"]
    assert f"{theirs / ours:.1f} times less wall clock" in PAGE
    assert f"({ours:.1f} s instead of {theirs:.1f} s)" in PAGE
    # Its other ranks: too long steps, or a loss that is not reached.
    steps = {(row["method"], row["rate"]): row["seconds"] for row in links()["steps"]}
    assert fewest_steps(ROWS["power:16"], 2.4) * steps["power:16", "100mbit"] > theirs
    assert fewest_steps(ROWS["power:1"], 2.4) is None
    assert steps["sketch:64:cells=int4", "1gbit"] < 0.52 * steps["power:4", "1gbit"]


def test_bytes_by_the_kernels_counter():
    real = {
        row["method"]: row for row in lines_of("ddp-steps-cpu.jsonl") if row["rate"] == "100mbit"
    }
    paced = {row["method"]: row["sent"] / 1e6 for row in links()["steps"]}
    sketch, power = "sketch:64:cells=int4", "power:4"
    assert f"sent {real[sketch]['sent'] / 1e6:.3f} MB a step" in PAGE
    assert f"of rank 4 {real[power]['sent'] / 1e6:.3f} MB;" in PAGE
    assert f"count {paced[sketch]:.3f} MB and {paced[power]:.3f} MB" in PAGE


def test_feedback():
    losses = [row["loss"] for row in lines_of("ddp-feedback-cpu.jsonl")]
    without = min(
        row["loss"] for row in lines_of("ddp-rates-cpu.jsonl") if "sketch" in row["method"]
    )
    assert (
        f"ended at {min(losses):.2f} to {max(losses):.2f}, and one without at {without:.2f}" in PAGE
    )
