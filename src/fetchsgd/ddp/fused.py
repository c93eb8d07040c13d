"""The hook on a GPU in four launches (fused_programs.py), with all memory had in advance.

A step of a small model is so short that starting programs takes longer than they run. So there are
few of them, they are the same in every step, and what they write to is kept.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fetchsgd.ddp.balance import RATE
from fetchsgd.ddp.exchange import ABOUT
from fetchsgd.ddp.keys import drawn_ahead
from fetchsgd.ddp.layout import Layout, Piece
from fetchsgd.ddp.levels import ROOM, Levels
from fetchsgd.ddp.settings import Settings
from fetchsgd.launch import launch
from fetchsgd.methods.base import State
from fetchsgd.sketch.permutation import SIGNS, Permutation

# Weights that one program moves, cells that one sums, and numbers that one adds up at once.
CHUNK, TILE, SPAN = 2048, 1024, 1024
# Floats that a thread reads at once, and groups that a program has in flight.
LANES, UNROLL = 4, 4
AHEAD = 256  # steps whose keys are drawn at once
WORDS = 8  # of a step's keys in memory, so that all begin at a multiple of 16 bytes


def can_fuse(settings: Settings, device: torch.device) -> bool:
    """What keeps a number for each weight on all ranks has the general way, with its kernels."""
    is_plain = settings.decode == "unbiased" and not settings.top_k and not settings.momentum
    return is_plain and device.type == "cuda" and importlib.util.find_spec("triton") is not None


def chunks_of(pieces: tuple[Piece, ...], first: int, tensor: int | None) -> list[list[int]]:
    """As the programs list them; places in the vector are counted from `first`."""
    listed, target = [], first
    for number, piece in enumerate(pieces):
        for at in range(0, piece.size, CHUNK):
            length = min(CHUNK, piece.size - at)
            which = number if tensor is None else tensor
            listed.append([which, piece.start + at, target + at, length])
        target += piece.size
    return listed


class FusedBucket:
    """One bucket, or several together, from step to step: `fill`, and `finish` when the sums of all
    ranks are there.
    """

    def __init__(
        self, settings: Settings, layout: Layout, index: int, device: torch.device,
        rank: int, world: int,
    ) -> None:  # fmt: skip
        self.settings, self.layout, self.index = settings, layout, index
        self.rank, self.world = rank, world
        self.buffers: Sequence[Tensor] = ()
        self.pointers: list[int] = []
        sketch = settings.sketch(layout.dim, 0, index)
        assert sketch.block is not None
        self.cols, self.block = sketch.cols, sketch.block
        hash = Permutation(layout.dim, 1, self.cols, self.block, 0)
        self.numbers = (
            hash.width, hash.low_bits, hash.highs, hash.turns, hash.flips, -1, 0, hash.groups
        )  # fmt: skip
        self.levels = Levels(settings.bits, world) if settings.has_levels else None
        self.tiles = -(-self.cols // TILE)
        self.tensors = len(layout.sizes)
        self._list_chunks(device)
        self._make_messages(device)
        self.vector = torch.empty(layout.dim, device=device)
        self.squares = torch.zeros(self.wide_chunks, device=device)
        self.scales = torch.ones(self.tensors, device=device)
        self.partial = torch.zeros(2 * self.tiles, device=device)
        self.used = torch.zeros(1, device=device)
        self.gain, self.said = settings.gain(layout.dim, self.cols), world * self.cols / layout.dim
        self.programs, self.constants = programs(), self._constants()
        self.drawn_from = -AHEAD
        self.keys = torch.zeros(AHEAD, WORDS, dtype=torch.int32, device=device)

    def _list_chunks(self, device: torch.device) -> None:
        balanced = self.tensors if self.settings.balance else 0
        wide = chunks_of(self.layout.compressed, 0, None)
        exact = chunks_of(self.layout.exact, balanced, -1)
        self.wide_chunks, self.descriptions = len(wide), 1 + len(exact) + balanced
        self.chunks = torch.tensor([*wide, *exact], dtype=torch.int64).to(device)
        self.exact = self.chunks[len(wide) :]
        self.in_bucket = self.chunks[:, 1].clone()
        pieces = (*self.layout.compressed, *self.layout.exact)
        counts = [-(-piece.size // CHUNK) for piece in pieces]
        self.buckets = torch.tensor(np.repeat([p.bucket for p in pieces], counts)).to(device)
        self.first_chunks = torch.tensor(
            np.concatenate([[0], np.cumsum(counts[: self.tensors])]), dtype=torch.int32
        ).to(device)
        self.counts = torch.tensor(self.layout.sizes, dtype=torch.float32).to(device)
        self.about = balanced + sum(self.layout.exact_sizes)

    def _make_messages(self, device: torch.device) -> None:
        """Where cells are rounded, what travels beside them need not be finer than bfloat16."""
        beside = self.about + ABOUT
        if self.levels:
            per_number = 1 if self.levels.bits == 8 else 2
            kind = ROOM[self.levels.bits][0]
            self.table = torch.zeros(-(-self.cols // per_number), dtype=kind, device=device)
            self.beside = torch.zeros(beside, dtype=torch.bfloat16, device=device)
            self.messages = [self.beside, self.table]
        else:
            kind = getattr(torch, self.settings.cells)
            whole = torch.zeros(beside + self.cols, dtype=kind, device=device)
            self.beside, self.table = whole[:beside], whole[beside:]
            self.messages = [whole]
        self.own = torch.zeros_like(self.table) if self.settings.feedback else self.table

    def _constants(self) -> dict[str, dict[str, Any]]:
        """What each program is compiled for."""
        settings, levels = self.settings, self.levels
        run, within = min(self.block, SIGNS), min(self.block, TILE)
        balanced, feedback = settings.balance > 0, settings.feedback > 0
        tensors, most = 1 << (self.tensors - 1).bit_length(), levels.most if levels else 0
        return {
            "balance": {
                "TENSORS": tensors, "BALANCED": balanced, "FEEDBACK": feedback, "CHUNK": CHUNK,
            },
            "fill": {
                "BITS": settings.bits, "MOST": most, "TENSORS": tensors, "FEEDBACK": feedback,
                "BLOCK": self.block, "T": TILE // within, "W": within // run, "P": run,
                "VECTOR": min(LANES, self.block), "UNROLL": UNROLL,
            },
            "describe": {
                "BALANCED": balanced, "MOST": most, "TENSORS": tensors, "CHUNK": CHUNK,
                "SPAN": SPAN,
            },
            "read": {
                "BITS": settings.bits, "MOST": most, "WORLD": self.world, "TENSORS": tensors,
                "BALANCED": balanced, "FEEDBACK": feedback, "BLOCK": self.block, "CHUNK": CHUNK,
                "RULE": levels.rule if levels else (),
            },
        }  # fmt: skip

    def begin(
        self, step: int, buffers: Sequence[Tensor], kept: State, errors: Tensor | None
    ) -> None:
        """Buckets and what is kept may be elsewhere in every step; errors are the rank's own."""
        self.buffers = buffers
        pointers = [buffer.data_ptr() for buffer in buffers]
        if pointers != self.pointers:
            self._point_to(pointers)
        if not self.drawn_from <= step < self.drawn_from + AHEAD:
            words = np.zeros((AHEAD, WORDS), dtype=np.int32)
            words[:, :6] = drawn_ahead(self.settings.seed, step, AHEAD, self.index)
            self.keys.copy_(torch.from_numpy(words))
            self.drawn_from = step
        self.key = self.keys[step - self.drawn_from]
        # Where nothing is kept, no program looks.
        self.size, self.steps = kept.get("size", self.scales), kept.get("step", self.used)
        self.errors = self.vector if errors is None else errors

    def _point_to(self, pointers: list[int]) -> None:
        """Programs get the first bucket; where others are is counted from there."""
        size, device = self.buffers[0].element_size(), self.chunks.device
        starts = torch.tensor([(each - pointers[0]) // size for each in pointers]).to(device)
        self.chunks[:, 1] = self.in_bucket + starts[self.buckets]
        self.pointers = pointers

    def fill(self) -> None:
        """This rank's messages."""
        bucket = self.buffers[0]
        launch(
            self.programs.balance, (self.wide_chunks,),
            self.vector, self.squares, self.scales, self.chunks, bucket, self.errors,
            self.size, self.tensors, self.settings.balance / 2, **self.constants["balance"],
        )  # fmt: skip
        launch(
            self.programs.fill, (self.tiles,),
            self.table, self.own, self.partial, self.vector, self.key, self.steps,
            self.tensors, self.tiles, self.rank, float(self.world), self.layout.dim, self.cols,
            *self.numbers, **self.constants["fill"],
        )  # fmt: skip
        launch(
            self.programs.describe, (self.descriptions,),
            self.beside, self.used, self.squares, self.first_chunks, self.counts, self.partial,
            self.steps, self.exact, bucket,
            self.tensors, len(self.exact), self.about, self.tiles, float(self.world), self.cols,
            **self.constants["describe"],
        )  # fmt: skip

    def finish(self) -> None:
        """From the sums to what the optimiser sees, in the buckets themselves."""
        launch(
            self.programs.read, (len(self.chunks) + 1,),
            self.buffers[0], self.errors, self.size, self.steps, self.chunks, len(self.chunks),
            self.table, self.own, self.beside, self.vector, self.scales, self.used, self.key,
            self.tensors, self.about, self.gain, self.said, self.settings.feedback, RATE,
            *self.numbers, **self.constants["read"],
        )  # fmt: skip


def programs() -> Any:
    """Imported where they run: without a GPU there may be no Triton."""
    from fetchsgd.ddp import fused_programs

    return fused_programs
