"""What was measured since it was last asked for."""

from __future__ import annotations

import torch

from fetchsgd.diagnose.spaces import Scalar

QUANTITIES = (
    "heaviest_share",
    "contraction",
    "error_left",
    "sliding_share",
    "masked_share",
    "estimation_error",
    "decoding_error",
    "decoding_error_predicted",
    "decoded_length",
    "decoded_along",
    "horizon",
    "rounding_share",
    "rounding_share_predicted",
)


class Notebook:
    """Numbers by name. They stay on the device until somebody reads them."""

    def __init__(self) -> None:
        self.pages: dict[str, list[Scalar]] = {}

    def note(self, name: str, value: Scalar) -> None:
        assert name in QUANTITIES
        self.pages.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        """The mean of each that was noted, as metrics name them; waits for the device, once.

        Shares of nothing, such as of an error that is zero, are left out of the mean.
        """
        names = [name for name in QUANTITIES if name in self.pages]
        if not names:
            return {}
        means = torch.stack([torch.stack(self.pages[name]).nanmean() for name in names]).tolist()
        self.pages = {}
        return {f"diagnose_{name}": mean for name, mean in zip(names, means, strict=True)}
