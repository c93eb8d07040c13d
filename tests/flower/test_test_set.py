"""In a federation the server alone reads the test set."""

import lazytask
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import counts, federation, train, weights

from fetchsgd.errors import UserError

LAZY = "lazytask:lazy"


def test_a_client_takes_part_without_one(tmp_path):
    """Nodes whose test set cannot be read train as those that have one; the server evaluates."""
    lazytask.READS.clear()
    grid = federation(tmp_path / "run", clients=(), task__name=LAZY)
    for client in range(12):
        grid.add(client, config={"task.readable": False})
    result = train(grid)
    assert lazytask.READS == ["read"]
    assert counts(result)["replies"] == 36
    assert counts(result)["failed"] == 0
    expected = train(federation(tmp_path / "whole"))
    assert result["value"] == expected["value"]
    assert weights(tmp_path / "run").equal(weights(tmp_path / "whole"))


def test_a_server_without_one_does_not_start(tmp_path):
    grid = federation(tmp_path / "run", task__name=LAZY, task__readable=False)
    with pytest.raises(UserError, match="there is no file test.bin here"):
        train(grid)
    assert grid.kinds == []
