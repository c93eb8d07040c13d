"""Every random choice follows from the run's seed, a purpose and a round: nothing to checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch

Purpose = Literal[
    "weights",
    "split",
    "cohort",
    "augment",
    "local",
    "quantise",
    "spare",
    "model",
    "noise",
    "rotate",
    "group",
    "attack",
]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def number(seed: int, purpose: Purpose, *steps: int) -> int:
    """A 63-bit number that depends on nothing else."""
    sequence = np.random.SeedSequence([seed, PURPOSES.index(purpose), *(steps or (0,))])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def numpy_generator(seed: int, purpose: Purpose, step: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=number(seed, purpose, step)))


def torch_generator(
    seed: int, purpose: Purpose, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    return torch.Generator(device).manual_seed(number(seed, purpose, step))


@contextmanager
def seeded_globals(seed: int, device: torch.device) -> Iterator[None]:
    """While this lasts, torch's global generators start from the seed; then they are as before.

    For models: dropout takes no generator. It takes a few microseconds, and waits for no device.
    """
    with kept_globals(device) as generators:
        for generator in generators:
            generator.manual_seed(seed)
        yield


@contextmanager
def kept_globals(device: torch.device) -> Iterator[list[torch.Generator]]:
    """The global generators of the CPU and of the device, whose states are restored at the end."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    try:
        yield generators
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
