"""Which device a run takes."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.runs.environment import choose_device


def test_a_gpu_that_is_not_there_gets_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu:0").type == "cpu"
    with pytest.raises(UserError, match="train.device is 'cuda:9', but torch finds 2 CUDA devices"):
        choose_device("cuda:9")
