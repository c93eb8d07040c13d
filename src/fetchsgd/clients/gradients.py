"""Every client's own gradient (Algorithm 1, line 7), for methods that are not linear.

Two ways. In one pass: an ordinary forward and backward pass over the examples of all clients, in
which every layer forms the clients' gradients of its own weights (layer_gradients.py). And by
torch.func's vmap, which takes nearly any model and weights that differ between clients, but turns
convolutions into grouped ones, which are slow; where weights differ, per_client_convolutions.py has
others for GPUs. A model that vmap cannot run is left to trainer.py, client by client.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fetchsgd.clients.dropout import keyed_dropout
from fetchsgd.clients.layer_gradients import full_precision
from fetchsgd.clients.per_client_convolutions import per_client_convolutions
from fetchsgd.clients.taps import layers_of, tapped
from fetchsgd.randomness import seeded_globals
from fetchsgd.tasks.base import Loss
from fetchsgd.tasks.checks import checked_losses
from fetchsgd.trees import Tree, first_leaf, flatten_clients, to_floats
from fetchsgd.vector import FlatModel

if TYPE_CHECKING:
    from fetchsgd.clients.batches import Cohort

# The two ways differ by rounding, which a deep network may enlarge; on a model that one pass does
# not suit, they differ by as much as the gradient.
ALLOWED_DIFFERENCE = 0.05
# Moves weights away from zeros, which would make all gradients before them zeros, right or wrong.
NUDGE = 1e-3

Gradients = tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]  # and losses


class ClientGradients:
    """Gradients and losses of clients that share their weights, or that each have their own.

    weight_decay: so many times the weights are added to each gradient.
    """

    def __init__(
        self, model: FlatModel, loss: Loss, compute_dtype: torch.dtype, weight_decay: float = 0.0
    ) -> None:
        self.model, self.loss, self.compute_dtype = model, loss, compute_dtype
        self.weight_decay = weight_decay
        self.layers = layers_of(model)
        self.convolves = any(isinstance(part, nn.Conv2d) for part in model.module.modules())
        # Not known before two clients' gradients have been computed both ways.
        self.vmap_serves: bool | None = None
        self.one_pass_serves: bool | None = None if self.layers else False
        self.why_not = ""  # vmap does not serve

    def can_take(self, weights: Float32[Tensor, "*n dim"], cohort: Cohort) -> bool:
        """Whether the model can be run for many clients at once.

        vmap cannot run a model whose path depends on its data or on chance, such as one that skips
        layers at random, nor torch's recurrent layers: an LSTM it runs step by step, two to three
        times slower than client by client.
        """
        if self.vmap_serves is None:
            self._try_both(weights if weights.ndim == 1 else weights[0], cohort.part(slice(2)))
        return bool(self.vmap_serves)

    def __call__(self, weights: Float32[Tensor, "*n dim"], cohort: Cohort) -> Gradients:
        if weights.ndim == 1 and self.serves_in_one_pass(weights, cohort):
            return self.in_one_pass(weights, cohort)
        # On a CPU, grouped convolutions are the faster ones.
        is_slow = weights.ndim == 2 and weights.is_cuda and self.convolves
        compute = self.by_per_client_convolutions if is_slow else self.by_vmap
        gradients, losses = compute(weights, cohort)
        return gradients + self.weight_decay * weights if self.weight_decay else gradients, losses

    def serves_in_one_pass(self, weights: Float32[Tensor, " dim"], cohort: Cohort) -> bool:
        if self.one_pass_serves is None and len(cohort.present) > 1:
            self._try_both(weights, cohort.part(slice(2)))
        return bool(self.one_pass_serves)

    def in_one_pass(
        self,
        weights: Float32[Tensor, " dim"],
        cohort: Cohort,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Gradients:
        """out: memory for the gradients, instead of new memory."""
        # No gradient over all clients is needed, so autograd computes none.
        parameters = self.model.views(weights.detach())
        gradients = weights.new_empty(len(cohort.present), self.model.dim) if out is None else out
        decay = self.weight_decay * weights.detach() if self.weight_decay else None
        with torch.enable_grad(), tapped(self.layers, gradients, decay) as taps:
            targets, keys = flatten_clients((cohort.targets, cohort.keys))
            losses = self._losses(parameters, cohort.examples, targets, keys)
            means = mean_present(losses.view(cohort.present.shape), cohort.present)
            torch.autograd.grad(means.sum(), taps.anchor, allow_unused=True)
        taps.fill_unreached()
        return gradients, means.detach()

    def by_vmap(self, weights: Float32[Tensor, "*n dim"], cohort: Cohort) -> Gradients:
        in_weights = None if weights.ndim == 1 else 0
        in_dims = (in_weights, 0, 0, 0, None if cohort.keys is None else 0)
        each = vmap(grad_and_value(self._mean_loss), in_dims, randomness="different")
        with warnings.catch_warnings():
            # Of what torch does client by client within vmap, which is still right.
            warnings.filterwarnings("ignore", "There is a performance drop")
            found: Gradients = each(
                weights, cohort.inputs, cohort.targets, cohort.present, cohort.keys
            )
        return found

    def by_per_client_convolutions(
        self, weights: Float32[Tensor, "n dim"], cohort: Cohort
    ) -> Gradients:
        in_dims = (0, 0, 0, 0, None if cohort.keys is None else 0)
        each = vmap(self._mean_loss, in_dims, randomness="different")
        with torch.enable_grad(), per_client_convolutions(self.model.module):
            weights = weights.detach().requires_grad_()
            losses = each(weights, cohort.inputs, cohort.targets, cohort.present, cohort.keys)
            # No client's loss depends on another's weights.
            (gradients,) = gradients_of(losses.sum(), [weights])
        return gradients, losses.detach()

    def _mean_loss(
        self,
        weights: Float32[Tensor, " dim"],
        inputs: Tree,
        targets: Tree,
        present: Tensor,
        keys: Tensor | None,
    ) -> Float32[Tensor, ""]:
        losses = self._losses(self.model.views(weights), inputs, targets, keys)
        return mean_present(losses, present)

    def _losses(
        self, parameters: list[Tensor], inputs: Tree, targets: Tree, keys: Tensor | None
    ) -> Tensor:
        mixed = self.compute_dtype != torch.float32
        autocast = torch.autocast(parameters[0].device.type, self.compute_dtype, mixed)
        with autocast, keyed_dropout(keys):
            outputs = self.model(parameters, inputs)
        return checked_losses(self.loss(to_floats(outputs), targets), len(first_leaf(targets)))

    def _try_both(self, weights: Float32[Tensor, " dim"], cohort: Cohort) -> None:
        """Find out from what the model does whether vmap and one pass suit it.

        One pass does not if weights are used a second time somewhere, or if examples mix, or if
        they are not the first dimension on the way. No look at the modules would tell.

        torch's dropout layers are off: they suit both ways, but need not draw the same in both.
        Whatever else draws starts from the same seed. If it still differs, vmap is taken.
        """
        exact = ClientGradients(self.model, self.loss, torch.float32)
        generator = torch.Generator(weights.device).manual_seed(0)
        noise = torch.randn(weights.shape, generator=generator, device=weights.device)
        weights = weights + NUDGE * noise
        self.vmap_serves = self.one_pass_serves = False
        if recurrent := next(self._recurrent_layers(), None):
            self.why_not = f"torch cannot run {recurrent} for many at once"
            return
        with without_dropout_layers(self.model.module), full_precision():
            expected = tried(exact.by_vmap, weights, cohort)
            if isinstance(expected, str):
                self.why_not = f"torch cannot run the model for many at once: {expected}"
                return
            self.vmap_serves = True
            # It may fail for shapes that do not fit, or inputs given by name.
            found = tried(exact.in_one_pass, weights, cohort) if self.layers else ""
        if not isinstance(found, str):
            self.one_pass_serves = self._agree(found, expected)

    def _recurrent_layers(self) -> Iterator[str]:
        for part in self.model.module.modules():
            if isinstance(part, nn.RNNBase):
                yield f"torch.nn.{part.mode.partition('_')[0]}"

    def _agree(self, found: Float32[Tensor, "n dim"], expected: Float32[Tensor, "n dim"]) -> bool:
        parts = (torch.split(vectors, self.model.sizes, dim=1) for vectors in (found, expected))
        return all(
            bool((ours - other).norm() <= ALLOWED_DIFFERENCE * other.norm())
            for ours, other in zip(*parts, strict=True)
        )


def tried(
    compute: Callable[[Tensor, Cohort], Gradients], weights: Float32[Tensor, " dim"], cohort: Cohort
) -> Float32[Tensor, "n dim"] | str:
    """The gradients, or why the model cannot be run this way."""
    try:
        with seeded_globals(0, weights.device):
            return compute(weights, cohort)[0]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        # torch takes a paragraph for what most often is the reason.
        return "its path depends on its data" if "data-dependent" in reason else reason[:200]


def gradients_of(loss: Float32[Tensor, ""], parameters: list[Tensor]) -> list[Tensor]:
    """Zeros for parameters that the loss does not depend on."""
    if not loss.requires_grad:
        return [torch.zeros_like(parameter) for parameter in parameters]
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


@contextmanager
def without_dropout_layers(module: nn.Module) -> Iterator[None]:
    dropout = nn.modules.dropout._DropoutNd
    training = [part for part in module.modules() if isinstance(part, dropout) and part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def mean_present(losses: Float32[Tensor, "*n m"], present: Tensor) -> Float32[Tensor, "*n"]:
    """The mean over the examples that a client has; 0 without any."""
    return (losses * present).sum(-1) / present.sum(-1).clamp(min=1)
