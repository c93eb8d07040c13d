"""The hook on a GPU in four launches (fused_programs.py), with all memory had in advance.

A step of a small model is so short that starting programs takes longer than they run. So there are
few of them, they are the same in every step, and what they write to is kept.
"""

from __future__ import annotations

import importlib.util

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
    """One bucket, from step to step: `fill`, and `finish` when the sums of all ranks are there."""

    def __init__(
        self, settings: Settings, layout: Layout, index: int, buffer: Tensor,
        rank: int, world: int,
    ) -> None:  # fmt: skip
        self.settings, self.layout, self.index = settings, layout, index
        self.buffer, self.rank, self.world = buffer, rank, world
        device = buffer.device
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
        self.drawn_from = -AHEAD
        self.keys = torch.zeros(AHEAD, WORDS, dtype=torch.int32, device=device)

    def _list_chunks(self, device: torch.device) -> None:
        balanced = self.tensors if self.settings.balance else 0
        wide = chunks_of(self.layout.compressed, 0, None)
        exact = chunks_of(self.layout.exact, balanced, -1)
        self.wide_chunks, self.exact_chunks = len(wide), len(exact)
        self.chunks = torch.tensor([*wide, *exact], dtype=torch.int64).to(device)
        counts = [-(-size // CHUNK) for size in self.layout.sizes]
        self.first_chunks = torch.tensor(
            np.concatenate([[0], np.cumsum(counts)]), dtype=torch.int32
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

    def begin(self, step: int, buffer: Tensor, kept: State, errors: Tensor | None) -> None:
        """The bucket and what is kept may be elsewhere in every step; errors are the rank's own."""
        self.buffer = buffer
        if not self.drawn_from <= step < self.drawn_from + AHEAD:
            words = np.zeros((AHEAD, WORDS), dtype=np.int32)
            words[:, :6] = drawn_ahead(self.settings.seed, step, AHEAD, self.index)
            self.keys.copy_(torch.from_numpy(words))
            self.drawn_from = step
        self.key = self.keys[step - self.drawn_from]
        # Where nothing is kept, no program looks.
        self.size, self.steps = kept.get("size", self.scales), kept.get("step", self.used)
        self.errors = self.vector if errors is None else errors

    @property
    def _flags(self) -> dict[str, object]:
        return {
            "TENSORS": 1 << (self.tensors - 1).bit_length(),
            "MOST": self.levels.most if self.levels else 0,
        }

    def fill(self) -> None:
        """This rank's messages."""
        settings, world = self.settings, float(self.world)
        flags = self._flags
        balanced, feedback = settings.balance > 0, settings.feedback > 0
        launch(
            programs().balance, (self.wide_chunks,),
            self.vector, self.squares, self.scales, self.chunks, self.buffer, self.errors,
            self.size, self.tensors, settings.balance / 2,
            TENSORS=flags["TENSORS"], BALANCED=balanced, FEEDBACK=feedback, CHUNK=CHUNK,
        )  # fmt: skip
        run = min(self.block, SIGNS)
        within = min(self.block, TILE)
        launch(
            programs().fill, (self.tiles,),
            self.table, self.own, self.partial, self.vector, self.key, self.steps,
            self.tensors, self.tiles, self.rank, world, self.layout.dim, self.cols,
            *self.numbers,
            BITS=settings.bits, FEEDBACK=feedback, **flags,
            BLOCK=self.block, T=TILE // within, W=within // run, P=run,
            VECTOR=min(LANES, self.block), UNROLL=UNROLL,
        )  # fmt: skip
        launch(
            programs().describe,
            (1 + self.exact_chunks + (self.tensors if balanced else 0),),
            self.beside, self.used, self.squares, self.first_chunks, self.counts, self.partial,
            self.steps, self.chunks[self.wide_chunks :], self.buffer,
            self.tensors, self.exact_chunks, self.about, self.tiles, world, self.cols,
            BALANCED=balanced, CHUNK=CHUNK, SPAN=SPAN, **flags,
        )  # fmt: skip

    def finish(self) -> Tensor:
        """From the sums to what the optimiser sees, in the bucket itself."""
        settings, world = self.settings, self.world
        listed = len(self.chunks)
        gain = settings.gain(self.layout.dim, self.cols)
        launch(
            programs().read, (listed + 1,),
            self.buffer, self.errors, self.size, self.steps, self.chunks, listed,
            self.table, self.own, self.beside, self.vector, self.scales, self.used, self.key,
            self.tensors, self.about, gain, world * self.cols / self.layout.dim,
            settings.feedback, RATE, *self.numbers,
            BITS=settings.bits, WORLD=world, BALANCED=settings.balance > 0,
            FEEDBACK=settings.feedback > 0, BLOCK=self.block, CHUNK=CHUNK,
            RULE=self.levels.rule if self.levels else (), **self._flags,
        )  # fmt: skip
        return self.buffer


def programs():  # type: ignore[no-untyped-def]
    """Imported where they run: without a GPU there may be no Triton."""
    from fetchsgd.ddp import fused_programs

    return fused_programs
