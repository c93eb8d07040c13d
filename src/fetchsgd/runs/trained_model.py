"""The trained model of a run: written to its folder, and loaded again.

`model.safetensors` holds the model's own `state_dict`: buffers and frozen parameters as well, and
parameters that several modules share under each of their names, so that `load_state_dict` takes it
as it is, with torch alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.named import IN_MEMORY
from fetchsgd.runs.files import (
    CHECKPOINT,
    CONFIG,
    MODEL,
    read_config,
    read_result,
    write_atomically,
)
from fetchsgd.runs.older import as_meant
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import initial_model
from fetchsgd.vector import FlatModel


def write_model(folder: Path, model: FlatModel, weights: Float32[Tensor, " dim"]) -> None:
    """`model.safetensors`, replaced as a whole."""
    from safetensors.torch import save

    state = model.copy_with(weights).state_dict()
    # A tensor under two names is written twice: the format has no other way, and readers need both.
    own = {name: part.contiguous().clone() for name, part in state.items() if is_tensor(part)}
    write_atomically(folder / MODEL, save(own, {"format": "pt"}))


def is_tensor(part: Any) -> bool:
    """Not the extra state that a module may keep in any form."""
    return isinstance(part, Tensor)


def load_model(
    run: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None
) -> nn.Module:
    """The trained model of a run folder, on the CPU.

    Args:
        run: the folder of a run that has ended, simulated or federated.
        model: the module to load the weights into, or a function that makes it. Without one, the
            task that the run's settings name makes it, which reads the task's data.

    Returns:
        The module, in the mode in which its task makes it: call `eval()` before you use it.

    >>> from tempfile import TemporaryDirectory
    >>> import fetchsgd as fs
    >>> with TemporaryDirectory() as folder:
    ...     result = fs.simulate("digits", "uncompressed", epochs=0.1, folder=folder)
    ...     again = fs.load_model(folder)
    >>> sum(weight.numel() for weight in again.parameters())
    85066
    """
    folder = Path(run)
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} holds no run: there is no {CONFIG} in it")
    if model is None:
        settings = as_meant(read_config(folder).values)
        if str(settings.get("task", {}).get("name", "")).startswith(IN_MEMORY):
            raise UserError(
                f"{folder} holds a run of a task that no import leads to; give the model as well: "
                "load_model(run, model)"
            )
        config = resolve(settings)
        module = initial_model(config.task, config.train.seed)
    else:
        module = model if isinstance(model, nn.Module) else model()
    if (folder / MODEL).exists():
        _load_state(module, folder / MODEL)
    elif read_result(folder) is not None and (folder / CHECKPOINT).exists():
        _load_checkpoint(module, folder / CHECKPOINT)  # folders of older versions have no other
    else:
        raise UserError(
            f"{folder} has no {MODEL}: the run has not ended, or it diverged; --resume ends a run "
            "that was interrupted"
        )
    return module


def _load_state(module: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(f"{path} does not fit the model: {error}") from error


def _load_checkpoint(module: nn.Module, path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        weights = file.get_tensor("weights")
    model = FlatModel(module)
    if len(weights) != model.dim:
        raise UserError(
            f"{path} holds {len(weights)} weights, but the model has {model.dim}; give the model "
            "that was trained"
        )
    model.put_weights(weights)
