"""The hook's programs for a GPU do what the hook does elsewhere, for one rank and for several."""

import pytest
import torch

from fetchsgd.ddp import Settings
from fetchsgd.ddp.balance import scales
from fetchsgd.ddp.exchange import Exchange
from fetchsgd.ddp.fused import FusedBucket, can_fuse
from fetchsgd.ddp.keys import draw
from fetchsgd.ddp.layout import Layout, Piece, of_buckets, of_pieces
from fetchsgd.ddp.levels import Levels

DEVICES = ["cuda" if torch.cuda.is_available() else "cpu"]
# Tensors of a bucket: out of the model's order, and of sizes that no power of two divides.
COMPRESSED = (Piece("a", 130, 2500, (50, 50)), Piece("b", 20, 110, (11, 10)))
EXACT = (Piece("c", 0, 20, (20,)), Piece("d", 2630, 7, (7,)))
LAYOUT = Layout(COMPRESSED, EXACT)
LENGTH = 2637
STEPS = 3
# The same tensors in two buckets, which are exchanged together.
HALVES = Layout(
    (Piece("a", 0, 2500, (50, 50), bucket=1), Piece("b", 20, 110, (11, 10), bucket=0)),
    (Piece("c", 0, 20, (20,), bucket=0), Piece("d", 2500, 7, (7,), bucket=1)),
)
CUT = 130


class Plain:
    """One rank, by exchange.py."""

    layout = LAYOUT

    def __init__(self, settings, rank, world, device):
        self.settings, self.rank, self.world = settings, rank, world
        self.kept = {
            "step": torch.zeros(2, device=device),
            "size": torch.zeros(2, device=device),
        }
        self.left = torch.zeros(LAYOUT.dim, device=device)

    def begin(self, step, buffers):
        settings, kept, layout = self.settings, self.kept, self.layout
        levels = Levels(settings.bits, self.world) if settings.has_levels else None
        self.exchange = Exchange(
            settings, layout, self.rank, self.world, settings.sketch(layout.dim, step, 1),
            {name: kept[name] for name in settings.fields},
            self.left if settings.feedback else None,
            of_buckets(buffers, layout.compressed), of_buckets(buffers, layout.exact),
            scales(kept["size"], settings.balance) if settings.balance else None,
            levels if step > 0 else None, draw(settings.seed, step, 1).rounding, step,
        )  # fmt: skip
        return self.exchange


class Fused(Plain):
    """The same, by fused.py from the second step on."""

    def begin(self, step, buffers):
        if step == 0 and self.settings.has_levels:
            return super().begin(step, buffers)
        if not hasattr(self, "bucket"):
            device, place = buffers[0].device, (self.rank, self.world)
            self.bucket = FusedBucket(self.settings, self.layout, 1, device, *place)
        kept = {name: self.kept[name] for name in self.settings.fields}
        self.bucket.begin(step, buffers, kept, self.left if self.settings.feedback else None)
        return self.bucket


class InTwo:
    """Each bucket as two, in memory of their own that is elsewhere in every step."""

    layout = HALVES

    def begin(self, step, buffers):
        (self.whole,) = buffers
        self.halves = [self.whole[:CUT].clone(), self.whole[CUT:].clone()]
        if step % 2:  # the second may lie before the first
            self.halves = [half.clone() for half in reversed(self.halves)][::-1]
        exchange = super().begin(step, self.halves)
        finish = type(exchange).finish
        exchange.finish = lambda: (finish(exchange), self.whole.copy_(torch.cat(self.halves)))
        return exchange


class PlainInTwo(InTwo, Plain):
    pass


class FusedInTwo(InTwo, Fused):
    pass


def run(kind, settings, world, gradients, spoil=None):
    """Messages of all ranks before they are added, what ranks read, and what they keep."""
    device = gradients.device
    ranks = [kind(settings, rank, world, device) for rank in range(world)]
    sent, read = [], []
    for step in range(STEPS):
        buffers = [gradients[step, rank].clone() for rank in range(world)]
        if step == spoil:
            buffers[-1][200] = torch.inf
        exchanges = [rank.begin(step, [one]) for rank, one in zip(ranks, buffers, strict=True)]
        for exchange in exchanges:
            exchange.fill()
        sent.append([[m.clone() for m in exchange.messages] for exchange in exchanges])
        for at in range(len(exchanges[0].messages)):
            whole = sum(one[at] for one in sent[-1])
            for exchange in exchanges:
                exchange.messages[at].copy_(whole)
        for exchange in exchanges:
            exchange.finish()
        read.append(buffers)
    return sent, read, ranks


def drawn(generator, world, device, dtype=torch.float32):
    gradients = torch.randn(STEPS, world, LENGTH, generator=generator)
    gradients[..., :130] *= 0.05
    return gradients.to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("cells", "world", "feedback"),
    [
        ("float32", 1, 0.9),
        ("bfloat16", 2, 0.0),
        ("int16", 2, 0.9),
        ("int8", 1, 0.0),
        ("int4", 3, 0.9),
    ],
)
def test_messages_and_gradients_are_those_of_the_general_way(
    device, cells, world, feedback, generator
):
    settings = Settings(8.0, cells, balance=0.0, feedback=feedback, seed=5)
    gradients = drawn(generator, world, device)
    sent, read, ranks = run(Plain, settings, world, gradients)
    fused_sent, fused_read, fused_ranks = run(Fused, settings, world, gradients)
    # Triton's interpreter cuts where it should round to the nearest bfloat16: one in 256.
    coarse = {"rtol": 1e-2, "atol": 2e-2}
    fine = coarse if cells == "bfloat16" else {"rtol": 1e-5, "atol": 1e-5}
    for step in range(STEPS):
        for one, other in zip(sent[step], fused_sent[step], strict=True):
            if settings.has_levels:
                assert one[-1].equal(other[-1])
            assert torch.allclose(one[0].float(), other[0].float(), **coarse)
        for one, other in zip(read[step], fused_read[step], strict=True):
            for part, same in zip(
                of_pieces(one, COMPRESSED), of_pieces(other, COMPRESSED), strict=True
            ):
                assert torch.allclose(part, same, **fine)
            assert torch.allclose(one, other, **coarse)
    for one, other in zip(ranks, fused_ranks, strict=True):
        assert torch.allclose(one.left, other.left, **fine)
        assert torch.allclose(one.kept["step"], other.kept["step"], **coarse)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_balanced_alike(device, dtype, generator):
    settings = Settings(8.0, "int16", balance=0.5, feedback=0.5)
    gradients = drawn(generator, 2, device, dtype)
    _, read, ranks = run(Plain, settings, 2, gradients)
    _, fused_read, fused_ranks = run(Fused, settings, 2, gradients)
    for step in range(STEPS):
        for one, other in zip(read[step], fused_read[step], strict=True):
            # A cell whose last bit differs may be rounded to another of 16383 levels.
            assert torch.allclose(one, other, rtol=2e-2, atol=5e-3)
        assert fused_read[step][0].equal(fused_read[step][1])
    assert torch.allclose(ranks[0].kept["size"], fused_ranks[0].kept["size"], rtol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("one", "two"), [(Plain, PlainInTwo), (Fused, FusedInTwo)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_buckets_together_are_one_to_the_bit(device, one, two, dtype, generator):
    settings = Settings(8.0, "int8", balance=0.5, feedback=0.5)
    gradients = drawn(generator, 2, device, dtype)
    sent, read, ranks = run(one, settings, 2, gradients)
    same_sent, same_read, same_ranks = run(two, settings, 2, gradients)
    for step in range(STEPS):
        for rank in range(2):
            assert read[step][rank].equal(same_read[step][rank])
            pairs = zip(sent[step][rank], same_sent[step][rank], strict=True)
            assert all(message.equal(same) for message, same in pairs)
    for rank, same in zip(ranks, same_ranks, strict=True):
        assert rank.left.equal(same.left)
        assert all(tensor.equal(same.kept[name]) for name, tensor in rank.kept.items())


# The interpreter computes with numpy, which warns of what is tested here.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_reaches_all_ranks_and_no_memory(device, generator):
    settings = Settings(8.0, "int8", feedback=0.5)
    gradients = drawn(generator, 2, device)
    _, read, spoilt = run(Fused, settings, 2, gradients, spoil=STEPS - 1)
    assert all(bool(buffer.isnan().all()) for buffer in read[-1])
    assert all(bool(rank.left.isfinite().all()) for rank in spoilt)
    assert all(bool(t.isfinite().all()) for rank in spoilt for t in rank.kept.values())


def test_which_options_are_fused():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert can_fuse(Settings(), gpu)
    assert not can_fuse(Settings(), cpu)
    for options in ({"top_k": 0.1}, {"momentum": 0.5}, {"decode": "prior"}):
        assert not can_fuse(Settings(**options), gpu)
