"""What is trained to compare hooks: a transformer on Shakespeare, or ResNet9 on CIFAR10.

    shakespeare     AdamW, and a rate of learning that stays
    resnet9         SGD with Nesterov's momentum, and a rate that rises and falls to zero; images
                    are cropped and mirrored at random. Weights start as He et al. have them: as
                    torch has them, a network without batch norm stays at chance for a hundred steps

`--data` is a folder with CIFAR10's files as their publisher has them (cifar-10-batches-bin/); else
they are in FETCHSGD_DATA, as the text is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fetchsgd.tasks.augment import crop_and_flip
from fetchsgd.tasks.base import Task
from fetchsgd.tasks.cifar import cifar10
from fetchsgd.tasks.shakespeare import CharacterModel, shakespeare

TASKS = ("shakespeare", "resnet9")
SGD = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
# Steps over which the rate of learning rises. A network without batch norm needs more of them.
WARM_UP = {"shakespeare": 20, "resnet9": 120}


def load(name: str, data: str) -> Task:
    return cifar10(folder=data) if name == "resnet9" else shakespeare(sequences_per_client=0)


def model_of(name: str, task: Task, width: int, layers: int, device: str) -> nn.Module:
    """width, layers: of the transformer."""
    if name != "resnet9":
        characters = int(task.train.targets.max()) + 1
        return CharacterModel(characters, width, layers).to(device)
    model = task.model().to(device)
    for parameter in model.parameters():
        nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    # In which a GPU has its fastest convolutions.
    return model.to(memory_format=torch.channels_last) if device == "cuda" else model


def optimizer_of(
    name: str, method: str, parameters: Iterable[Tensor], lr: float, device: str
) -> torch.optim.Optimizer:
    """Without momentum where the method has its own, as FetchSGD does."""
    if name == "resnet9":
        options: dict[str, Any] = SGD
        if ":momentum=" in method:
            options = SGD | {"momentum": 0.0, "nesterov": False}
        return torch.optim.SGD(parameters, lr=lr, **options)
    return torch.optim.AdamW(parameters, lr=lr, fused=device == "cuda" or None)


def rate(name: str, peak: float, step: int, steps: int) -> float:
    """Of learning, in one of so many steps."""
    warm_up = WARM_UP[name]
    rising = min(1.0, (step + 1) / warm_up)
    if name != "resnet9" or step < warm_up:
        return peak * rising
    return peak * (steps - step) / max(steps - warm_up, 1)


def augmented(name: str, inputs: Tensor, dice: torch.Generator) -> Tensor:
    return crop_and_flip(inputs, dice) if name == "resnet9" else inputs


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--data", default="", help="a folder with CIFAR10's files")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
