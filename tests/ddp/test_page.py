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
README = " ".join((ROOT / "README.md").read_text().split())
ROWS = by_method(lines_of("ddp-curves-h200.jsonl"))
IMAGES = by_method(lines_of("ddp-resnet9-h200.jsonl"))


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
    assert (
        plain == "| `plain` | 4000 |  | 90.0 % | 0.05 | 40, 160 MB | 48, 192 MB | 56, 224 MB |  |"
    )
    assert diverged == "| `topk:0.1` | 1000 |  | diverged |  |  |  |  |  |"
    assert TOOLS["resnet9_rates"]() == ("Rates that were tried: 0.05 and 0.1; `topk:0.1` 0.1.")
    timed = [
        {"method": "plain:bucket_mb=9", "rate": rate, "seconds": seconds}
        for rate, seconds in (("100mbit", 2.5), ("1gbit", 0.25))
    ]
    names["IMAGE_LINKS"].write_text(json.dumps({"steps": timed}))
    assert "| 2500 and 250 | 90.0 %" in TOOLS["resnet9"]()
    assert "40, 160 MB, 100 and 10.0 s" in TOOLS["resnet9"]()


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


def of_image(method):
    """By how much its least loss at the end is above plain DDP's."""
    least = {name: min(row["loss"] for row in IMAGES[name]) for name in ("plain", method)}
    return least[method] - least["plain"]


def test_what_came_nearest_to_plain():
    ends = {method: min(row["loss"] for row in rows) for method, rows in ROWS.items()}
    full = {"plain", "bf16"}
    assert min(ends.keys() - full, key=lambda method: ends[method] - ends["plain"]) == "power:16"
    times = ROWS["power:16"][0]["sent"] / ROWS["sketch:64:cells=int4"][0]["sent"]
    assert f"for {times:.1f} times the bytes of our sketch at 64x" in PAGE
    sketch, low_rank, theirs = "sketch:64:cells=int4", "lowrank:16:8", "power:16"
    assert of_image(sketch) < of_image(theirs) < 0
    assert abs(of_image(low_rank) - of_image(theirs)) < 0.01
    for ours, share in ((sketch, 0.36), (low_rank, 0.26)):
        assert IMAGES[ours][0]["sent"] < share * IMAGES[theirs][0]["sent"]
    assert max(map(of_image, ("topk:0.01", theirs, low_rank, sketch))) < 0.02


def test_what_is_said_of_images():
    least, losses = TOOLS["least_seconds"], TOOLS["IMAGE_LOSSES"]
    theirs = [least(["power"], loss) for loss in losses]
    sketch = [least(["sketch"], loss) / time for loss, time in zip(losses, theirs, strict=True)]
    less = f"takes {100 * (1 - max(sketch)):.0f} to {100 * (1 - min(sketch)):.0f} % less time"
    assert less in PAGE
    ours = [least(["sketch", "lowrank"], loss) for loss in losses]
    shares = [one / other for one, other in zip(ours, theirs, strict=True)]
    assert f"and ResNet9 in {min(shares):.1f} to {max(shares):.1f} of it" in README
    assert [share < 0.5 for share in shares] == [False, False, False, True]  # the target
    for loss, time, other in zip(losses, ours, theirs, strict=True):
        assert least(["topk"], loss) < min(time, other)
    low_rank = [least(["lowrank"], loss) / time for loss, time in zip(losses, theirs, strict=True)]
    less = f"takes {100 * (1 - max(low_rank)):.0f} to {100 * (1 - min(low_rank)):.0f} % less time"
    assert less in PAGE
    tests = {name: {row["lr"]: row["test"] for row in rows} for name, rows in IMAGES.items()}
    best = {name: max(found, key=found.get) for name, found in tests.items()}
    assert [name for name in best if best[name] == 0.2] == ["sketch:64:cells=int4"]
    assert sum(0.2 in found for found in tests.values()) == 5
    once, twice = (100 * tests["sketch:64:cells=int4"][rate] for rate in (0.1, 0.2))
    assert f"({twice:.1f} % instead of {once:.1f} %)" in PAGE
    others = [name for name, found in tests.items() if 0.2 not in found and len(found) > 1]
    assert {best[name] for name in others} == {0.1}


def test_a_third_of_the_time_is_that_of_a_transformer():
    times = {run["method"]: seconds_to(run, 2.4) for run in links()["runs"]}
    share = times["sketch:256:cells=int4:exact_below=0"] / times["power:4"]
    assert abs(share - 1 / 3) < 0.03
    assert "that train a transformer came to the same loss in about a third" in README


def test_real_links_on_two_cores_do_not_decide():
    """But for those that send everything, 1 Gbit/s is no faster there."""
    seconds = {(r["method"], r["rate"]): r["seconds"] for r in lines_of("ddp-steps-cpu.jsonl")}
    methods = {method for method, _ in seconds} - {"plain", "bf16", "power:16"}
    for method in methods:
        assert seconds[method, "1gbit"] > 0.99 * seconds[method, "100mbit"]


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
