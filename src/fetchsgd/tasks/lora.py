"""Adapters of low rank in a language model (LoRA, Hu et al. 2022): a few weights that are trained.

The model's own weights are frozen, so that neither gradients nor updates of them are ever sent:
each linear layer W becomes W + (alpha / rank) B A. Tokens that the model did not know before have
meaningless vectors, so these are trained too, as is whatever stands on top of the model. B starts
with zeros: before the first round the model computes what it did without adapters.

peft makes the adapters and is imported when they are asked for.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn

from fetchsgd.errors import UserError

INSTALL = "pip install fetchsgd[llm]"
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Lora:
    """rank: of B A. alpha: 0 is twice the rank. targets: names of layers, or all linear ones."""

    rank: int
    alpha: float = 0.0
    targets: str = ALL_LINEAR

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"task.lora_rank must be at least 1, got {self.rank}")
        if self.alpha < 0:
            raise ValueError(f"task.lora_alpha must be at least 0, got {self.alpha}")
        if not all(self.layers):
            raise ValueError(
                f"task.lora_targets must be {ALL_LINEAR!r} or names of layers with commas between "
                f"them, such as 'q_proj,v_proj', got {self.targets!r}"
            )

    @property
    def layers(self) -> list[str]:
        return [name.strip() for name in self.targets.split(",")]


def find_lora(rank: int, alpha: float, targets: str) -> Lora | None:
    """What a task's options ask for; a rank of 0 is no adapters."""
    if rank:
        return Lora(rank, alpha, targets)
    for name, value, default in (("alpha", alpha, 0.0), ("targets", targets, ALL_LINEAR)):
        if value != default:
            raise ValueError(
                f"task.lora_{name} is {value!r}, but task.lora_rank is 0, so there are no adapters"
            )
    return None


def add_adapters(language_model: Any, lora: Lora, new_tokens: tuple[int, ...]) -> None:
    """Freeze the model but for new tokens, and put adapters in; A is drawn by torch's generator."""
    peft = _peft()
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=ALL_LINEAR if lora.layers == [ALL_LINEAR] else lora.layers,
        trainable_token_indices=_token_layers(language_model, new_tokens),
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # Of GPT-2's layers, whose weights are transposed: peft says that it noticed.
            warnings.filterwarnings("ignore", "fan_in_fan_out")
            peft.inject_adapter_in_model(config, language_model)
    except ValueError as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"peft cannot put adapters on task.lora_targets = {lora.targets!r}: {reason}; "
            f"{ALL_LINEAR!r} takes every linear layer but the last"
        ) from error


def _token_layers(language_model: Any, new_tokens: tuple[int, ...]) -> dict[str, list[int]] | None:
    """Layers in which new tokens have vectors; where these are shared, peft finds the second."""
    if not new_tokens:
        return None
    words, outputs = language_model.get_input_embeddings(), language_model.get_output_embeddings()
    layers: list[nn.Module] = [words] if outputs.weight is words.weight else [words, outputs]
    names = {module: name for name, module in language_model.named_modules()}
    return {names[layer]: list(new_tokens) for layer in layers}


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise UserError(f"task.lora_rank needs the package {error.name}: {INSTALL}") from error
