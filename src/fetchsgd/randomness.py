"""Every random choice follows from the run's seed, a purpose and a round: nothing to checkpoint."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

Purpose = Literal["weights", "split", "cohort", "augment", "local", "quantise", "spare"]
PURPOSES: tuple[Purpose, ...] = (
    "weights",
    "split",
    "cohort",
    "augment",
    "local",
    "quantise",
    "spare",
)


def number(seed: int, purpose: Purpose, step: int = 0) -> int:
    """A 63-bit number that depends on nothing else."""
    sequence = np.random.SeedSequence([seed, PURPOSES.index(purpose), step])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def numpy_generator(seed: int, purpose: Purpose, step: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=number(seed, purpose, step)))


def torch_generator(
    seed: int, purpose: Purpose, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    return torch.Generator(device).manual_seed(number(seed, purpose, step))
