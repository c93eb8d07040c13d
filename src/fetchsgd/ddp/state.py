"""SketchState: what the hook needs, and what it keeps between steps, the same on every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from fetchsgd.ddp.base import HookState
from fetchsgd.ddp.fused import FusedBucket
from fetchsgd.ddp.grouping import Group
from fetchsgd.ddp.layout import Layout
from fetchsgd.ddp.memory import Kept, Memory
from fetchsgd.ddp.settings import Cells, Settings
from fetchsgd.errors import UserError

FORMAT = 1


class SketchState(HookState):
    """The state of `sketch_hook`; `Settings` says what the options mean.

    model: the model that is trained, wrapped or not, to know parameters by their names.
    process_group: None is that of a model which is wrapped already, or else the default group.

    step: how many steps have been taken. sent_bytes: what this rank has handed to all-reduce.
    """

    def __init__(
        self,
        model: nn.Module,
        compression: float = 16.0,
        *,
        cells: Cells = "int8",
        start_iter: int = 0,
        top_k: float = 0.0,
        momentum: float = 0.0,
        decode: Literal["prior", "unbiased"] = "unbiased",
        noise_limit: float = 2.5,
        balance: float = 0.5,
        exact_below: int = 1024,
        feedback: float = 0.0,
        group_mb: float | None = None,
        seed: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.settings = Settings(
            compression=compression,
            cells=cells,
            start_iter=start_iter,
            top_k=top_k,
            momentum=momentum,
            decode=decode,
            noise_limit=noise_limit,
            balance=balance,
            exact_below=exact_below,
            feedback=feedback,
            group_mb=group_mb,
            seed=seed,
        )
        super().__init__(model, process_group)
        self.memory = Memory(self.settings.fields)
        self.errors = Memory({"left": True})  # this rank's own, with feedback
        self.waiting: Group | None = None  # buckets of this step that are not exchanged yet
        self._fused: dict[tuple[int, Layout], FusedBucket] = {}
        self._together: dict[tuple[Layout, ...], Layout] = {}

    def together(self, layouts: Sequence[Layout]) -> Layout:
        """Of buckets that are exchanged together."""
        if len(layouts) == 1:
            return layouts[0]
        key = tuple(layouts)
        if key not in self._together:
            self._together[key] = Layout.together(layouts, self.places.__getitem__)
        return self._together[key]

    def fused(
        self, layout: Layout, index: int, device: torch.device, rank: int, world: int
    ) -> FusedBucket:
        """Its memory on the GPU, which goes from step to step."""
        key = index, layout
        if key not in self._fused:
            names = set(layout.names)
            for other in [other for other in self._fused if not names.isdisjoint(other[1].names)]:
                del self._fused[other]  # of buckets that are no more
            self._fused[key] = FusedBucket(self.settings, layout, index, device, rank, world)
        return self._fused[key]

    def is_wide(self, shape: torch.Size) -> bool:
        return self.settings.is_compressed(shape)

    def state_dict(self) -> dict[str, Any]:
        """The same on every rank, but for the devices: numbers, texts and tensors alone."""
        return {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "step": self.step,
            "parameters": self.memory.copies(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From any rank's, of a run with the same settings; compression may be another."""
        missing = {"format", "settings", "step", "parameters"} - set(state)
        if missing or state["format"] != FORMAT:
            raise UserError(
                "this is not a state_dict of SketchState"
                + (f": it has no {sorted(missing)[0]!r}" if missing else f" of format {FORMAT}")
            )
        self._check_settings(state["settings"])
        self._check_parameters(state["parameters"])
        self.step = int(state["step"])
        self.memory.replace(state["parameters"])
        self.errors.replace({})
        self._agreed_in = None

    def _check_settings(self, given: Mapping[str, Any]) -> None:
        # The rest decides what is sent, not what has been kept.
        for name in (
            "cells",
            "top_k",
            "momentum",
            "decode",
            "balance",
            "exact_below",
            "feedback",
            "seed",
        ):
            own = getattr(self.settings, name)
            if given.get(name) != own:
                raise UserError(
                    f"the state was saved with {name}={given.get(name)!r}, and this one has "
                    f"{name}={own!r}; make it with the same"
                )

    def _check_parameters(self, kept: Kept) -> None:
        shapes = {name: p for p, name in self.names.items() if self.is_wide(p.shape)}
        if absent := sorted(set(shapes) - set(kept)) if kept else []:
            raise UserError(f"the state is of another model: it has no {absent[0]!r}")
        for name, fields in kept.items():
            if name not in shapes:
                raise UserError(
                    f"the state is of another model: it has {name!r}, which is not a parameter "
                    "that is compressed here"
                )
            for field, is_per_weight in self.memory.fields.items():
                count = shapes[name].numel() if is_per_weight else 1
                found = fields.get(field)
                if found is None or found.numel() != count:
                    raise UserError(
                        f"the state is of another model: {field!r} of {name!r} must have {count} "
                        f"numbers, got {0 if found is None else found.numel()}"
                    )

    def digest(self) -> Any:
        hash = super().digest()
        hash.update(json.dumps([asdict(self.settings), self.step]).encode())
        for name, fields in self.memory.copies().items():
            hash.update(name.encode())
            for tensor in fields.values():
                hash.update(tensor.cpu().numpy().tobytes())
        return hash
