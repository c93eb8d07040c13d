"""The code of docs/models.md, from top to bottom."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/models.md").read_text()


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    names = {"__name__": "page"}
    for block in blocks:
        exec(block, names)
    assert names["result"].rounds == 6
    sizes = [names[data].sizes.sum() for data in ("on_disk", "one", "each", "spoken", "noisy")]
    assert sizes == [300] * 5
