"""Sixteen neighbouring columns at once, in vector instructions.

Left to itself, numba cannot know that the rows of a butterfly do not overlap, and adds number by
number. The number of rows, 2, 4, 8 or 16, is the length of the tuple `rows`, which is part of its
type.

Numba's cache on disk looks at the file of a loop alone: touch cpu_loops.py after a change here.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# Numba's compiler, which these functions extend, has no types, and passes more than they need.

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
VECTOR = ir.VectorType(ir.FloatType(), LANES)
BITS = ir.VectorType(ir.IntType(32), LANES)


@intrinsic
def butterfly_lanes(typing, buffer, at, apart, rows):
    """All butterflies of rows that begin at `at`, `at + apart`, `at + 2 apart` and so on."""

    def build(context, builder, signature, values):
        array = context.make_array(signature.args[0])(context, builder, values[0])
        places, at = [], values[1]
        for _ in range(len(rows)):
            place = builder.gep(array.data, [at])
            places.append(builder.bitcast(place, VECTOR.as_pointer()))
            at = builder.add(at, values[2])
        found = [builder.load(place, align=4) for place in places]
        half = 1
        while half < len(found):
            found = [
                builder.fsub(found[i - half], found[i])
                if i & half
                else builder.fadd(found[i], found[i + half])
                for i in range(len(found))
            ]
            half *= 2
        for value, place in zip(found, places, strict=True):
            builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.int64, rows), build


@intrinsic
def move_lanes(typing, out, at, source, start, signs, scale):
    """`out[at + i]` becomes `source[start + i]` times `scale`, negated where bit i is set."""

    def build(context, builder, signature, values):
        pointers = []
        for array, place in ((0, 1), (2, 3)):
            found = context.make_array(signature.args[array])(context, builder, values[array])
            element = builder.gep(found.data, [values[place]])
            pointers.append(builder.bitcast(element, VECTOR.as_pointer()))
        spread = _spread(builder, values[4], BITS)
        # The bit of each lane moved to the top, where the sign is.
        shifts = ir.Constant(BITS, [31 - i for i in range(LANES)])
        top = ir.Constant(BITS, [0x80000000] * LANES)
        flips = builder.and_(builder.shl(spread, shifts), top)
        cells = builder.load(pointers[1], align=4)
        cells = builder.fmul(cells, _spread(builder, values[5], VECTOR))
        flipped = builder.xor(builder.bitcast(cells, BITS), flips)
        builder.store(builder.bitcast(flipped, VECTOR), pointers[0], align=4)
        return context.get_dummy_value()

    index = types.int64
    return types.void(out, index, source, index, types.uint32, types.float32), build


def _spread(builder, value, kind):
    """The same in all lanes."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)
