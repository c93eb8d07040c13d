"""What a client keeps: in Flower's memory or in a folder, and what it does with a broken file."""

import pickle
import zlib

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import (
    at_look,
    counts,
    federation,
    lines,
    train,
    train_until_killed,
    weights,
)
from flwr.app import Context, RecordDict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fetchsgd.errors import UserError
from fetchsgd.exchange.client_state import ClientState
from fetchsgd.flower.client_state import About, InFolder, keeper, read_file

VECTORS = {"held": np.arange(5, dtype=np.int32), "error": np.ones((1, 5), np.float32)}
EVERYBODY = {"train__clients_per_round": 12, "train__epochs": 6.0}


def in_folders(grid, folder):
    for node in grid.nodes.values():
        node.context.node_config["state"] = str(folder)
    return grid


def a_keeper(tmp_path, form):
    config = {"partition-id": 3} | ({"state": str(tmp_path / "new")} if form == "folder" else {})
    return keeper(Context(1, 1, config, RecordDict(), {}), 3)


@pytest.mark.parametrize("form", ["context", "folder"])
def test_there_and_back(form, tmp_path):
    ours = a_keeper(tmp_path, form)
    assert ours.load() is None
    assert ours.about() == About("", 0)
    ours.save(ClientState("abc", 6, {"held": VECTORS["held"] + 1}))
    ours.save(ClientState("abc", 7, VECTORS))
    found = ours.load()
    assert ours.about() == About("abc", 7) == About(found.lineage, found.version)
    assert found.vectors.keys() == VECTORS.keys()
    for name, vector in VECTORS.items():
        np.testing.assert_array_equal(found.vectors[name], vector, strict=True)


@pytest.mark.parametrize("folder", ["", 7, True])
def test_the_folder_must_be_a_folder(folder):
    with pytest.raises(UserError, match="state must name a folder of this node, got"):
        keeper(Context(1, 1, {"state": folder}, RecordDict(), {}), 0)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create .*file"):
        InFolder(tmp_path / "file", 0).save(ClientState("abc", 1, VECTORS))


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def rewritten(**change):
    def damage(path):
        with safe_open(path, "np") as file:
            about = file.metadata()
        assert change.keys() <= about.keys()
        save_file(load_file(path), path, about | change)

    return damage


def renamed(path, before, after):
    path.write_bytes(path.read_bytes().replace(before.encode(), after.encode()))


DAMAGES = {
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nothing": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(500)),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(VECTORS)),
    "a folder": lambda path: path.unlink() or path.mkdir(),
    "a flipped bit": flipped,
    "another program's": lambda path: save_file(VECTORS, path),
    "another format": rewritten(format="fetchsgd.kept.3"),
    "another client's": rewritten(client="4"),
    "another checksum": rewritten(checksum="0"),
    "another version": rewritten(version="8"),
    "another run's": rewritten(lineage="abd"),
    "another name": lambda path: renamed(path, "held", "helf"),
    "a version that is no number": rewritten(version="seven"),
    "a version below 0": rewritten(version="-1"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_file_is_told_and_counts_as_nothing(name, tmp_path, caplog):
    ours = InFolder(tmp_path, 3)
    ours.save(ClientState("abc", 7, VECTORS))
    DAMAGES[name](ours.path)
    assert ours.load() is None
    assert "what client 3 held is lost: " in caplog.text
    assert str(ours.path) in caplog.text
    if name != "a folder":
        ours.save(ClientState("abc", 8, VECTORS))
        assert ours.about() == About("abc", 8)


def test_files_of_the_version_before_are_read(tmp_path):
    ours = InFolder(tmp_path, 3)
    found = 0
    for name in sorted(VECTORS):
        found = zlib.crc32(VECTORS[name].data, found)
    about = {"format": "fetchsgd.kept.1", "client": "3", "lineage": "abc", "version": "7"}
    save_file(VECTORS, ours.path, about | {"checksum": str(found)})
    assert ours.load().version == 7
    assert ours.load().vectors.keys() == VECTORS.keys()


def test_what_is_half_written_is_beside_the_file(tmp_path):
    ours = InFolder(tmp_path, 3)
    ours.save(ClientState("abc", 7, VECTORS))
    (tmp_path / "client-3.safetensors.partial").write_bytes(b"abc")  # killed while it wrote
    assert ours.about() == About("abc", 7)
    ours.save(ClientState("abc", 8, VECTORS))
    assert [path.name for path in tmp_path.iterdir()] == ["client-3.safetensors"]


CASES = [
    ("fetchsgd", {}),
    ("fetchsgd", {"upload__bits": 2, "download__grid": "steps"}),
    ("local_topk", {"upload__bits": 4, "settings": "local_error=true local_momentum=0.5"}),
]


@pytest.mark.parametrize(("method", "more"), CASES, ids=str)
def test_training_is_the_same_and_flower_carries_nothing(method, more, tmp_path):
    train(federation(tmp_path / "memory", method, **more))
    grid = in_folders(federation(tmp_path / "folder", method, **more), tmp_path / "state")
    result = train(grid)
    assert torch.equal(weights(tmp_path / "folder"), weights(tmp_path / "memory"))
    assert counts(result)["resent"] == counts(result)["lost"] == 0
    assert not any(node.context.state for node in grid.nodes.values())
    names = {f"client-{client}.safetensors" for client in range(12)}
    assert {path.name for path in (tmp_path / "state").iterdir()} == names
    pending = {"memory.error", "memory.momentum", "reply.payload", "reply.about"}
    kept = read_file(tmp_path / "state" / "client-3.safetensors", 3, with_vectors=True)
    assert kept.vectors.keys() == {"held"} | (pending if "settings" in more else set())


@pytest.mark.parametrize("grid_of", ["float32", "steps"])
def test_a_restarted_node_goes_on_from_its_version(grid_of, tmp_path, caplog):
    """As another node, without a word of Flower's memory."""
    caplog.set_level("INFO")
    grid = federation(tmp_path / "run", download__grid=grid_of, **EVERYBODY)
    in_folders(grid, tmp_path / "state")

    def restart():
        grid.nodes[103].online = False
        grid.add(3, config={"state": str(tmp_path / "state")})

    at_look(grid, 5, restart)
    result = train(grid)
    train(federation(tmp_path / "clean", download__grid=grid_of, **EVERYBODY))
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "clean"))
    assert counts(result)["joined"] == 13
    assert counts(result)["lost"] == counts(result)["resent"] == 0
    assert "client 3 has joined and holds version 3" in caplog.text


@pytest.mark.parametrize("damage", ["half of it", "a flipped bit", "gone"])
def test_a_restarted_node_with_a_broken_file_asks_for_everything(damage, tmp_path, caplog):
    grid = federation(tmp_path / "run", **EVERYBODY)
    in_folders(grid, tmp_path / "state")

    def restart():
        grid.nodes[103].online = False
        path = tmp_path / "state" / "client-3.safetensors"
        path.unlink() if damage == "gone" else DAMAGES[damage](path)
        grid.add(3, config={"state": str(tmp_path / "state")})

    at_look(grid, 5, restart)
    result = train(grid)
    train(federation(tmp_path / "clean", **EVERYBODY))
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "clean"))
    assert counts(result)["lost"] == 1
    assert ("what client 3 held is lost" in caplog.text) == (damage != "gone")


def test_weights_that_are_not_the_servers_are_forgotten(tmp_path):
    """A file that is whole, and yet wrong."""
    grid = in_folders(federation(tmp_path / "run", **EVERYBODY), tmp_path / "state")
    ours = InFolder(tmp_path / "state", 3)
    versions = []

    def damage():
        kept = ours.load()
        versions.append(0 if kept is None else kept.version)
        if versions[-1] == 2 and 2 not in versions[:-1]:
            ours.save(ClientState(kept.lineage, 2, {"held": kept.vectors["held"] + 1}))

    grid.before_look = damage
    assert counts(train(grid))["lost"] == 1
    assert 0 in versions[versions.index(2) :]


def test_a_file_of_another_model_is_no_state(tmp_path, caplog):
    grid = in_folders(federation(tmp_path / "run", **EVERYBODY), tmp_path / "state")
    ours = InFolder(tmp_path / "state", 3)

    def damage():
        kept = ours.load()
        if kept is not None and kept.version == 2:
            ours.save(ClientState(kept.lineage, 2, {"held": kept.vectors["held"][1:]}))
            grid.before_look = None

    grid.before_look = damage
    assert counts(train(grid))["lost"] == 1
    assert "what this client has kept is of another model" in caplog.text


def test_a_killed_server_finds_its_clients_as_they_were(tmp_path):
    """For Flower it is another run, with other memory; the folders are the same."""
    grid = in_folders(federation(tmp_path / "run", **EVERYBODY), tmp_path / "state")
    train_until_killed(grid, looks=5)
    assert lines(tmp_path / "run")[-1]["round"] >= 2
    again = in_folders(federation(tmp_path / "run", **EVERYBODY), tmp_path / "state")
    result = train(again)
    train(federation(tmp_path / "whole", **EVERYBODY))
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert counts(result)["resumed"] == 1
    assert counts(result)["lost"] == 0


def test_another_run_takes_the_file_over(tmp_path):
    """And nothing of the first one, such as memory of the client's own, gets into the second."""
    method, more = CASES[2]
    first = in_folders(federation(tmp_path / "first", method, **more), tmp_path / "state")
    second = in_folders(federation(tmp_path / "second", method, **more), tmp_path / "state")
    train(first)
    result = train(second)
    assert counts(result)["lost"] == counts(result)["resent"] == 0
    assert torch.equal(weights(tmp_path / "first"), weights(tmp_path / "second"))
