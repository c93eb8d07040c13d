"""Differential privacy for whole clients: clipping, noise, and what it all promises.

    source.py      random bits under a key                 settings.py    the section [privacy]
    clipping.py    messages are no longer than the clip
    rounding.py    how long whole levels can be
    exact.py       discrete noise, one number after another, by the papers
    tables.py      the same by the million                 noise.py       who adds which noise
    renyi.py       Rényi divergences of it                 accounting.py  epsilon and delta of runs

Whatever the server does with a noisy sum (decoding, momentum, error, top-k) costs no privacy.
"""

from fetchsgd.privacy.accounting import Accountant, Participation, noise_for
from fetchsgd.privacy.clipping import AdaptiveClip, Limit, clip
from fetchsgd.privacy.noise import DistributedNoise, LevelNoise, distributed_noise_for, gaussian
from fetchsgd.privacy.renyi import Gaussian
from fetchsgd.privacy.rounding import most_size, most_squares, round_within
from fetchsgd.privacy.settings import Privacy
from fetchsgd.privacy.source import Source

__all__ = [
    "Accountant",
    "AdaptiveClip",
    "DistributedNoise",
    "Gaussian",
    "LevelNoise",
    "Limit",
    "Participation",
    "Privacy",
    "Source",
    "clip",
    "distributed_noise_for",
    "gaussian",
    "most_size",
    "most_squares",
    "noise_for",
    "round_within",
]
