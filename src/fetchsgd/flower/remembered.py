"""What a server remembers of earlier replies, in the checkpoint: the next server judges as it did.

Without it a resumed server would compare norms and losses with the largest medians alone, and give
clients that were rejected again and again as many chances as in the beginning.
"""

from __future__ import annotations

from itertools import chain, islice

import torch
from torch import Tensor

from fetchsgd.flower.admission import Admission
from fetchsgd.flower.patience import Patience
from fetchsgd.runs.checkpoint import Tensors
from fetchsgd.runs.folder import Line

REJECTED = "rejected"  # client, rejections in a row, the round in which it is asked again


class Remembered:
    """The windows of `Admission` and the records of `Patience`, beside a run."""

    def __init__(self, admission: Admission, patience: Patience) -> None:
        self.admission, self.patience = admission, patience

    def line(self) -> Line:
        """The counts are those of events.py."""
        return {}

    def result(self) -> Line:
        return {}

    def tensors(self) -> Tensors:
        found = {REJECTED: torch.tensor(self.patience.records, dtype=torch.int64).view(-1, 3)}
        for name, rounds in self.admission.windows.items():
            found[f"{name}_values"] = torch.tensor(list(chain(*rounds)), dtype=torch.float64)
            found[f"{name}_counts"] = torch.tensor([len(each) for each in rounds])
        return found

    def restore(self, tensors: Tensors) -> None:
        self.patience.restore(tensors[REJECTED].tolist())
        self.admission.remember({
            name: _split(tensors[f"{name}_values"], tensors[f"{name}_counts"])
            for name in self.admission.windows
        })  # fmt: skip


def _split(values: Tensor, counts: Tensor) -> list[list[float]]:
    """One list a round."""
    left = iter(values.tolist())
    return [list(islice(left, count)) for count in counts.tolist()]
