"""Buckets that are exchanged together: they wait for each other, and share a table.

On a fast GPU a layer's part of the backward pass is over sooner than Python has started what a
bucket needs. So there several of DDP's buckets are gathered, and what is started once is for all of
them. Each keeps a future of its own, which DDP waits for only when it has all buckets handed over.

All ranks have the same buckets in the same order, those that are out of data too (join), so they
gather the same ones. A table that speaks for several buckets is the one that a larger bucket would
have had.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fetchsgd.ddp.base import Seen
from fetchsgd.ddp.layout import Layout
from fetchsgd.ddp.reducing import Gradient

Buffers = list[Tensor]


class Group:
    """index: of its first bucket. most: bytes of gradients with which it is full.
    done: which gets the buckets when they hold what was read.

    done is None where streams wait for each other: all work has been queued when DDP asks for a
    result, so buckets get futures that are done already. Callbacks would take longer than all else
    that a bucket needs.
    """

    def __init__(
        self, index: int, like: Tensor, most: float, done: torch.futures.Future[Buffers] | None
    ) -> None:
        self.index, self.dtype, self.device = index, like.dtype, like.device
        self.most, self.done = most, done
        self.layouts: list[Layout] = []
        self.buffers: Buffers = []
        self.streams: dict[int, torch.cuda.Stream] = {}  # by their address
        self.nbytes = 0

    def takes(self, buffer: Tensor) -> bool:
        """Those of one table are of one kind."""
        return buffer.dtype == self.dtype and buffer.device == self.device

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self.most

    def add(self, seen: Seen, buffer: Tensor) -> Gradient:
        """The bucket's own future."""
        self.layouts.append(seen.layout)
        self.buffers.append(buffer)
        self.nbytes += buffer.nbytes
        if buffer.is_cuda:
            # To make an object of the stream takes longer than all else here, and it is nearly
            # always the same stream.
            address = torch._C._cuda_getCurrentRawStream(self.device.index)
            if address not in self.streams:
                self.streams[address] = torch.cuda.current_stream(self.device)
        if self.done is None:
            return seen.done(buffer)

        def own(done: torch.futures.Future[Buffers]) -> Tensor:
            done.value()  # which raises what went wrong
            return buffer

        return self.done.then(own)

    def set_result(self) -> None:
        """The buckets hold what was read, or will when the streams are there."""
        if self.done is not None:
            self.done.set_result(self.buffers)

    def set_exception(self, error: Exception) -> None:
        """For whoever waits for a bucket; where nobody does, the hook itself must raise it."""
        assert self.done is not None
        self.done.set_exception(error)  # type: ignore[arg-type]

    def wait_for_streams(self) -> None:
        """Gradients may have been computed on several; the current one sees all of them."""
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            for stream in self.streams.values():
                if stream != current:
                    current.wait_stream(stream)
