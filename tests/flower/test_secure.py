"""Secure aggregation in whole federations without processes."""

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import counts, lines, train, weights
from flower.secretly import secret_federation

from fetchsgd.flower.settings import read_settings
from fetchsgd.simulation import Run

CASES = [
    ("fetchsgd", {}),
    ("uncompressed", {"train__averaging": "examples", "upload__sum_bits": 12}),
    ("fedavg", {"settings": "local.epochs=1"}),
]


@pytest.mark.parametrize(("method", "more"), CASES, ids=str)
def test_the_federation_trains_as_the_simulator_does(method, more, tmp_path):
    grid = secret_federation(tmp_path / "real", method, **more)
    result = train(grid)
    settings, _ = read_settings(grid.run_config)
    expected = Run(settings).execute(tmp_path / "simulated")
    assert result["rounds"] == expected["rounds"] == 6
    print(counts(result), result["wire_upload_bytes"], expected["wire_upload_bytes"])
    a, b = weights(tmp_path / "real"), weights(tmp_path / "simulated")
    print((a - b).abs().max(), a.abs().max())
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert counts(result)["replies"] == 36
    assert counts(result)["resent"] == counts(result)["failed"] == 0
