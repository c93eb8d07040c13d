"""The campaigns in their short forms; `make chaos` has the long ones."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from chaos import bounds, disks, hostile_bytes, load, table, wires
from chaos.forks import Death, fork, outcome
from chaos.mutations import mended, mutated
from chaos.portions import is_there, tell
from wire.messages import one_of_each

from fetchsgd.flower.server_round import Clock
from fetchsgd.runs.files import write_atomically
from fetchsgd.wire import WireError, decode

RUN = Path(__file__).parent / "run.py"
ROOT = Path(__file__).parents[2]


def test_hostile_messages_get_past_the_checksum():
    """And some of them are whole: so the mutations are neither too weak nor too strong."""
    kinds, random = list(one_of_each().values()), Random(0)
    assert all(mended(message) == message for message in kinds)
    said = []
    for _ in range(300):
        try:
            decode(mutated(kinds, random))
        except WireError as error:
            said.append(str(error))
    assert 200 < len(said) < 300
    assert not any("checksum" in sentence or "cut off" in sentence for sentence in said)
    assert len(set(said)) > 50


def test_hostile_messages(tmp_path):
    found = hostile_bytes.campaign(0, 2000, 60.0, tmp_path)
    assert found["messages"] == 2000
    assert found["decoder"] > 1000 < 10 * found["protocol"]


def test_a_message_is_slow_if_it_is_so_again():
    """What a machine does meanwhile is not the message's time; what it takes each time is."""
    delays = iter([0.0] * 400 + [0.05] + [0.0] * 1000)

    def busy(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def held_up():
        busy(next(delays))
        return b"", lambda: None

    def slow():
        busy(0.11 if next(delays) else 0.0)
        return b"", partial(busy, 0.11)

    found = bounds.within_bounds(held_up, 600, 60.0)
    assert found.seconds < 0.05 <= found.seconds_at_first
    delays = iter([0.0] * 300 + [1.0] * 2)
    with pytest.raises(AssertionError, match=r"a message took 0\.1"):
        bounds.within_bounds(slow, 302, 60.0)


def test_damaged_files(tmp_path):
    found = disks.damage(0, 25, tmp_path)
    kinds = ("checkpoint cut", "checkpoint flipped", "client cut", "client flipped")
    assert [found[f"{kind}, refused"] for kind in kinds] == [25] * 4


def test_many_replies_at_once(tmp_path):
    found = load.campaign(0, 30, 2, tmp_path, "8 bits")
    assert found["round_mb"] >= 25
    assert found["reply_as_floats_mb"] > 4


def test_replies_that_have_come_count_however_long_merging_takes(tmp_path):
    """The deadline and the lifetime of messages pass while the first of them are merged."""
    hurried = Clock(lambda: 10_000 * time.monotonic())
    began = hurried.now()
    load.campaign(0, 30, 2, tmp_path, "8 bits", hurried)
    assert hurried.now() - began > 4 * 120


@pytest.mark.parametrize("stage", ["half", "written", "synced", "replaced"])
def test_a_death_at_each_moment_of_a_write(stage, tmp_path):
    """What campaigns rely on: before the last moment there is the old file, after it the new."""
    write_atomically(tmp_path / "a", b"before")
    death = Death(0, stage)
    child = fork(lambda: write_atomically(tmp_path / "a", b"after it"), death)
    assert outcome(child, death) == "killed"
    assert (tmp_path / "a").read_bytes() == (b"after it" if stage == "replaced" else b"before")
    left = {"half": b"afte", "written": b"after it", "synced": b"after it"}
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.partial")} == (
        {"a.partial": left[stage]} if stage in left else {}
    )


def test_a_killed_simulator():
    command = [sys.executable, str(RUN), "kill-simulator", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["kills"] >= 2
    assert found["identical"]


def campaign(name):
    command = [sys.executable, str(RUN), name, "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.federation  # for its time alone
@pytest.mark.parametrize("name", ["kill-server", "kill-clients"])
def test_killed_servers_and_clients(name):
    found = campaign(name)
    assert found["kills"] >= 2
    assert found["identical"]


@pytest.mark.federation
@pytest.mark.skipif(os.geteuid() != 0, reason="disks are mounted, which needs root")
def test_bad_disks():
    assert campaign("disk")["troubles"] == 4


@pytest.mark.federation
@pytest.mark.parametrize("name", ["kill-flower", "kill-secure"])
def test_flowers_own_processes_are_killed(name):
    found = campaign(name)
    assert found["kills"] >= 3
    assert found["identical"]


@pytest.mark.federation
def test_a_federation_over_bad_links():
    try:
        wires.require()
    except wires.network.LinksError as error:
        pytest.skip(str(error))
    found = campaign("network")["storms"]
    assert found["identical"]
    assert found["packets"]["dropped"] > 0
    assert found["packets"]["cut off"] > 0
    assert found["changes"]["partition"] == 1


def test_a_portion_is_not_run_again_unless_something_has_changed(tmp_path, monkeypatch):
    out = tmp_path / "chaos.jsonl"
    monkeypatch.setenv("FETCHSGD_COMMIT", "abc")
    assert not is_there(out, "bytes", 3, 100)
    tell(json.dumps({"name": "bytes", "seed": 3, "amount": 100, "commit": "abc"}), out)
    tell(json.dumps({"campaign": "of an earlier version"}), out)
    assert is_there(out, "bytes", 3, 100)
    assert not is_there(out, "bytes", 4, 100)
    assert not is_there(out, "bytes", 3, 200)
    monkeypatch.setenv("FETCHSGD_COMMIT", "abcd")
    assert not is_there(out, "bytes", 3, 100)


def test_the_tables_of_the_page_are_those_of_the_results():
    source = "benchmarks/results/chaos.jsonl"
    lines = [json.loads(line) for line in (ROOT / source).read_text().splitlines()]
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert table.written(page, lines, source) == page
    assert f"| `disk` | {sum(line.get('troubles', 0) for line in lines)} |" in page
