"""Random changes to a batch of images, on their device: photos (appendix A.1), writing (A.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float32, Int64, Shaped, UInt8
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

PADDING = 4
WHITE = 255


def crop_and_flip(
    images: Shaped[Tensor, "n channels height width"], generator: torch.Generator
) -> Shaped[Tensor, "n channels height width"]:
    """Pad each image by its reflection, cut its own size out at random, mirror it or not.

    One gather does it all: padding and mirroring are arithmetic on the indices, and nothing waits
    for the device.
    """
    n, _, height, width = images.shape
    draw = partial(torch.randint, generator=generator, device=images.device)
    down, right = draw(2 * PADDING + 1, (2, n, 1)) - PADDING
    mirrored = draw(2, (n, 1)).bool()
    across = torch.arange(width, device=images.device).expand(n, width)
    across = torch.where(mirrored, across.flip(1), across)
    rows = reflected(torch.arange(height, device=images.device) + down, height)
    columns = reflected(across + right, width)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, height * width)
    flat = images.flatten(2)
    return flat.gather(2, pixels.expand(flat.shape)).view(images.shape)


def reflected(positions: Int64[Tensor, "n size"], size: int) -> Int64[Tensor, "n size"]:
    """Positions outside of [0, size) mirrored at its ends, which are not repeated."""
    last = size - 1
    inside: Tensor = last - (last - positions.abs()).abs()
    return inside


@dataclass(frozen=True)
class Warp:
    """How far writing is warped at most; drawn uniformly for each image, in either direction.

    shift: whole pixels down and across, as a random crop after padding would do.
    turn: degrees. scale: change of height and of width. slant: pixels across for each down.
    """

    shift: int = 2
    turn: float = 8.0
    scale: float = 0.1
    slant: float = 0.1


GENTLE = Warp()


def warp_writing(
    images: UInt8[Tensor, "n 1 side side"], generator: torch.Generator, most: Warp = GENTLE
) -> UInt8[Tensor, "n 1 side side"]:
    """Move, turn, stretch and slant dark writing on white paper. Letters are never mirrored."""
    matrices = fetched_from(len(images), images.shape[-1], generator, most)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    # As ink, since beyond the edges grid_sample sees zeros: there must be paper.
    ink = (WHITE - images).float()
    moved = grid_sample(ink, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return WHITE - moved.round().to(torch.uint8)


def fetched_from(
    n: int, side: int, generator: torch.Generator, most: Warp
) -> Float32[Tensor, "n 2 3"]:
    """For each image, turn * (stretch and slant) and the move; its edges are at -1 and 1."""
    device = generator.device
    angle, tall, wide, lean = 2 * torch.rand(4, n, generator=generator, device=device) - 1
    cos, sin = (part(math.radians(most.turn) * angle) for part in (torch.cos, torch.sin))
    tall, wide, lean = 1 + most.scale * tall, 1 + most.scale * wide, most.slant * lean
    moves = torch.randint(2 * most.shift + 1, (2, n), generator=generator, device=device)
    down, right = (moves - most.shift) * (2 / side)
    rows = [cos * wide, cos * lean - sin * tall, right], [sin * wide, sin * lean + cos * tall, down]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
