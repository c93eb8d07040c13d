"""The tables on the page are what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOSSES = ("2.4", "2.3", "2.2", "2.1", "2.0")


def results(file):
    return json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())


def test_loss_against_bytes():
    page, found = (ROOT / "docs/ddp.md").read_text(), results("ddp-curves-h200")
    rows = {row["method"]: row for row in found["steps_to"]}
    shown = [line.split("`")[1] for line in page.splitlines() if " MB |" in line]
    assert len(shown) >= 8
    for method in shown:
        row = rows[method]
        loss = min(run["loss"] for run in found["runs"] if run["method"] == method)
        cells = [
            f"{steps}, {steps * row['sent'] / 1e6:.0f} MB" if (steps := row["steps"][each]) else ""
            for each in LOSSES
        ]
        line = f"| `{method}` | {row['sent'] / 1e3:.0f} | {loss:.3f} | {' | '.join(cells)} |"
        assert line in page


def test_what_follows_from_it():
    rows = {row["method"]: row for row in results("ddp-curves-h200")["steps_to"]}
    low_rank, ours = rows["power:4"], rows["sketch:256:cells=int4:balance=1:exact_below=0"]
    page = (ROOT / "docs/ddp.md").read_text()
    sending = []  # seconds at 100 Mbit/s for a ring of four
    for row in (ours, low_rank):
        sending += [1.5 * 8 * row["sent"] * row["steps"][each] / 1e8 for each in ("2.4", "2.3")]
    assert "that are {:.1f} s and {:.1f} s of sending,".format(*sending[:2]) in page
    assert "instead of {:.1f} s and {:.1f} s.".format(*sending[2:]) in page
    mine, theirs = ours["steps"]["2.3"], low_rank["steps"]["2.3"]
    twice = (sending[3] - 2 * sending[1]) / (2 * mine - theirs)
    even = (sending[3] - sending[1]) / (mine - theirs)
    assert f"takes at most {1000 * twice:.0f} ms" in page
    assert f"from {1000 * even:.0f} ms on" in page


def test_a_step_over_the_links():
    page = (ROOT / "docs/ddp.md").read_text()
    lines = (ROOT / "benchmarks/results/ddp-steps-cpu.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        if row["rate"] == "100mbit":
            sending, own = 8e3 * row["sent"] / 1e8, 1e3 * row["own"]
            cells = f"{row['sent'] / 1e6:.3f} | {sending:.0f} | {own:.0f}"
            assert f"| `{row['method']}` | {cells} |" in page


def test_a_step_at_a_gigabit():
    page = (ROOT / "docs/ddp.md").read_text()
    lines = (ROOT / "benchmarks/results/ddp-steps-cpu.jsonl").read_text().splitlines()
    rows = {r["method"]: r for r in map(json.loads, lines) if r["rate"] == "1gbit"}
    sending = [8e3 * rows[name]["sent"] / 1e9 for name in ("sketch:64:cells=int4", "plain")]
    assert "{:.0f} ms for `sketch:64:cells=int4` and {:.0f} ms for `plain`".format(*sending) in page

    def seconds(kind):
        found = [row["seconds"] for name, row in rows.items() if name.startswith(kind)]
        return f"{min(found):.2f} s to {max(found):.2f} s"

    assert f"{rows['bf16']['seconds']:.2f} s a step for bfloat16" in page
    assert f"{rows['plain']['seconds']:.2f} s for plain DDP" in page
    assert f"{seconds('power')} for PowerSGD, {seconds('sketch')} for the sketch" in page


def test_rates_of_learning():
    page = (ROOT / "docs/ddp.md").read_text()
    lines = (ROOT / "benchmarks/results/ddp-rates-cpu.jsonl").read_text().splitlines()
    best, sent = {}, {}
    for row in map(json.loads, lines):
        kilobytes = f"{row['sent'] / 1e3:.0f}"
        assert f"| `{row['method']}` | {row['lr']:g} | {kilobytes} | {row['loss']:.3f} |" in page
        best[row["method"]] = min(best.get(row["method"], 9.0), row["loss"])
        sent[row["method"]] = row["sent"]
    assert best["sketch:64:cells=int4"] < best["power:4"]
    ratio = sent["power:4"] / sent["sketch:64:cells=int4"]
    assert f"with {ratio:.1f} times fewer bytes" in page


def test_matrices_of_low_rank():
    page = (ROOT / "docs/ddp.md").read_text()
    lines = (ROOT / "benchmarks/results/ddp-low-rank-cpu.jsonl").read_text().splitlines()
    rows = {row["method"]: row for row in map(json.loads, lines)}
    for method, row in rows.items():
        assert f"| `{method}` | {row['sent'] / 1e3:.0f} | {row['loss']:.3f} |" in page
    ratio = rows["power:4"]["sent"] / rows["lowrank:4:8"]["sent"]
    assert f"with {ratio:.1f} times fewer bytes nearly" in page


def test_feedback():
    page = (ROOT / "docs/ddp.md").read_text()
    lines = (ROOT / "benchmarks/results/ddp-feedback-cpu.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        assert f"| `{row['method']}` | {row['lr']:g} | {row['loss']:.3f} |" in page
    rates = (ROOT / "benchmarks/results/ddp-rates-cpu.jsonl").read_text().splitlines()
    without = min(row["loss"] for row in map(json.loads, rates) if "sketch" in row["method"])
    assert all(json.loads(line)["loss"] > without for line in lines)


def test_levels_of_four_bits():
    page = (ROOT / "docs/ddp.md").read_text()
    for row in results("ddp-four-cpu")["rows"]:
        assert f"| `{row['method']}` | {row['loss']:.3f} |" in page
