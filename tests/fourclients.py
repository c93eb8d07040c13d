"""Four clients of up to three examples, and their gradients in one pass and by vmap."""

from __future__ import annotations

import torch
from torch import nn

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel

SIZES = torch.tensor([3, 1, 2, 3])


def cohort_of(inputs):
    """Four clients of up to three examples with these inputs, in three classes."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(3, (4, 3), generator=generator)
    return Cohort(inputs, targets, torch.arange(3) < SIZES[:, None], torch.full((4,), 0.25))


def cohort_like(*shape):
    return cohort_of(torch.randn(4, 3, *shape, generator=torch.Generator().manual_seed(0)))


def gradients_of(module, dtype=torch.float32):
    return ClientGradients(FlatModel(module), cross_entropy, dtype)


def last(width):
    """From any shape to three scores."""
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 3))


def words():
    return cohort_of(torch.randint(11, (4, 3, 5), generator=torch.Generator().manual_seed(0)))


def images(channels=2, size=8):
    return cohort_like(channels, size, size)


class OnPositions(nn.Module):
    """Words to vectors, a layer on each position, the mean over positions."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.each = nn.Linear(6, 3)

    def forward(self, words):
        return self.each(self.norm(self.words(words))).mean(dim=1)


def both_ways(module, cohort, dtype=torch.float32):
    gradients = gradients_of(module, dtype)
    weights = gradients.model.weights()
    found, losses = gradients(weights, cohort)
    expected, expected_losses = gradients.by_vmap(weights, cohort)
    rtol = 1e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(losses, expected_losses, rtol=rtol, atol=1e-6)
    return gradients.one_pass_serves, found, expected


# A path, and what is set for it: whether vmap serves, and whether one pass does.
PATHS = {
    "chosen": None,
    "a local step": None,
    "by vmap": (True, False),
    "one after another": (False, False),
}


def gradients_on_every_path(module, weight_decay=0.0):
    """By name of the path: (n, dim) gradients of four clients, or (1, dim) of all together."""
    cohort = cohort_like(5)
    model = FlatModel(module)
    weights, generator = model.weights(), torch.Generator()
    paths = {}
    for path, serves in PATHS.items():
        trainer = Trainer(model, cross_entropy, weight_decay)
        if serves is not None:
            side_by_side = trainer._side_by_side
            side_by_side.vmap_serves, side_by_side.one_pass_serves = serves
        work = LocalWork(epochs=1 if path == "a local step" else 0)
        vectors, _ = trainer.client_vectors(weights, cohort, work, 1.0, generator, 0)
        paths[path] = vectors
    pieces, _ = Trainer(model, cross_entropy, weight_decay).mean_gradient(weights, cohort.batch, 0)
    paths["one batch"] = torch.cat([piece.flatten() for piece in pieces])[None]
    many = weights.expand(4, -1).clone()
    each = ClientGradients(model, cross_entropy, torch.float32)
    for path in ("by_vmap", "by_per_client_convolutions"):
        paths[f"own weights {path}"] = getattr(each, path)(many, cohort)[0] + weight_decay * many
    return model, paths
