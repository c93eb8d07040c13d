"""A communication hook for DistributedDataParallel: gradients travel as sketches.

    model = DistributedDataParallel(model)
    state = SketchState(model, compression=16)
    model.register_comm_hook(state, sketch_hook)

Workers all-reduce a table instead of the gradient, and all of them read it alike, so everything
that is kept between steps is the same on every rank (docs/ddp.md).

LowRankState and low_rank_hook do it by matrices of low rank instead.
"""

from fetchsgd.ddp.hook import sketch_hook
from fetchsgd.ddp.low_rank_hook import LowRankState, low_rank_hook
from fetchsgd.ddp.settings import Settings
from fetchsgd.ddp.state import SketchState

__all__ = ["LowRankState", "Settings", "SketchState", "low_rank_hook", "sketch_hook"]
