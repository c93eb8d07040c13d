"""How fast one core takes replies: from a reply's bytes to the sum, in each format.

    python benchmarks/replies.py [--out benchmarks/results/replies-cpu.json]

The functions alone that judge a reply and add it; `tests/chaos/run.py load-8-bits` and others go
through the server's loop. Replies are sketches of a megabyte; the entropy coder makes those of few
bits smaller. Seconds are the processor's, so that others on the same machine count for less.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import environment, report

from fetchsgd.exchange.merging import Expected, RunningMean, judge
from fetchsgd.exchange.messages import Answer
from fetchsgd.methods import FetchSGD, Upload
from fetchsgd.quantisers import Bits
from fetchsgd.wire import encode

DIM, ROWS = 262_504, 5
COLUMNS = {32: 52_429, 16: 104_858, 8: 209_715, 4: 419_430, 2: 838_861}
TARGET = 200.0  # MB/s of payload


def measured(bits: int, replies: int) -> dict[str, Any]:
    method = FetchSGD(DIM, k=1000, cols=COLUMNS[bits], rows=ROWS)
    vector = torch.randn(DIM, generator=torch.Generator().manual_seed(0))
    upload = Upload(Bits(bits), key=0)
    payload = encode(method.message.write(vector, None, 0, 0, upload))
    expected = Expected(method.message, Bits(bits), "", "", 0, by_examples=False)
    mean = RunningMean(method.message, torch.device("cpu"))
    taken = []
    for _ in range(replies):
        began = time.process_time()
        mean.add(0, judge(Answer("", "", 0, 0, 1, 1.0, payload), 0, expected))
        taken.append(time.process_time() - began)
    seconds = median(taken[1:])  # the first one compiles
    speed = len(payload) / seconds / 1e6
    return {
        "what": f"{bits} bits, {len(payload) / 1e6:.3f} MB, {1e3 * seconds:.2f} ms",
        "measured": f"{speed:.1f} MB/s",
        "ratio": TARGET / speed,
        "target": 1.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replies", type=int, default=41)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(bits, given.replies) for bits in COLUMNS]
    report(rows, environment("cpu"), given.out)


if __name__ == "__main__":
    main()
