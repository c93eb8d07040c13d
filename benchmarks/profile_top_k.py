"""Where the time of one top_k on a GPU goes: kernels, their busy time, and the gaps between them.

python benchmarks/profile_top_k.py
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fetchsgd import CountSketch

DIM, ROWS, COLS, K, CALLS = 124_000_000, 5, 1_240_000, 50_000, 20


def main() -> None:
    sketch = CountSketch(DIM, ROWS, COLS)
    table = sketch.sketch(torch.randn(DIM, device="cuda"))
    for _ in range(5):
        sketch.top_k(table, K)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            sketch.top_k(table, K)
            torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    busy: Counter[str] = Counter()
    for event in events:
        busy[event.name[:60]] += event.device_time_total / CALLS / 1e3
    print(f"{len(events) / CALLS:.0f} kernels a call, busy for {busy.total():.3f} ms")
    for name, milliseconds in busy.most_common(12):
        print(f"  {milliseconds:.4f} ms  {name}")


if __name__ == "__main__":
    main()
