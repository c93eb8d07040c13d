"""A few neighbouring floats in one vector instruction, with the flips and signs of permutation.py.

As in the kernels' other cpu_lanes.py, lengths of the tuples `lanes` and `rows` are what loops are
compiled for, and numba's cache on disk looks at the file of a loop alone.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# Numba's compiler, which these functions extend, has no types, and passes more than they need.

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fetchsgd.sketch.kernels.cpu_lanes import (
    FLOAT,
    INDEX,
    INT32,
    _array,
    _cell,
    _element,
    _load,
    _median,
    _store,
)


@intrinsic
def add_flipped(typing, out, column, vector, at, flip, bits, lanes):
    """`out[column + (i ^ flip)] += sign i * vector[at + i]` for every lane i, signs from `bits`.

    Of the flip those bits count that are below the number of lanes.
    """

    def build(context, builder, signature, values):
        target = _element(builder, _array(context, builder, signature, values, 0), values[1])
        source = _element(builder, _array(context, builder, signature, values, 2), values[3])
        moved = _negated(builder, _load(builder, source, lanes), values[5], lanes)
        moved = _flipped(builder, moved, values[4], lanes)
        _store(builder, builder.fadd(_load(builder, target, lanes), moved), target, lanes)
        return context.get_dummy_value()

    return types.void(out, INDEX, vector, INDEX, types.uint32, types.uint32, lanes), build


@intrinsic
def copy_flipped(typing, out, at, vector, column, flip, bits, lanes):
    """`out[at + i] = sign i * vector[column + (i ^ flip)]` for every lane i, signs from `bits`."""

    def build(context, builder, signature, values):
        target = _element(builder, _array(context, builder, signature, values, 0), values[1])
        source = _element(builder, _array(context, builder, signature, values, 2), values[3])
        moved = _flipped(builder, _load(builder, source, lanes), values[4], lanes)
        _store(builder, _negated(builder, moved, values[5], lanes), target, lanes)
        return context.get_dummy_value()

    return types.void(out, INDEX, vector, INDEX, types.uint32, types.uint32, lanes), build


@intrinsic
def median_of_rows(typing, out, at, table, rows, lanes):
    """`out[at + i]` becomes the median over rows of `table[row, at + i]`, for every lane i."""

    def build(context, builder, signature, values):
        if len(rows) == 0:  # compiled where rows are too many, but not run
            return context.get_dummy_value()
        target = _element(builder, _array(context, builder, signature, values, 0), values[1])
        cells = _array(context, builder, signature, values, 2)
        runs = [
            _load(builder, _cell(builder, cells, row, values[1]), lanes) for row in range(len(rows))
        ]
        _store(builder, _median(builder, runs, lanes), target, lanes)
        return context.get_dummy_value()

    return types.void(out, INDEX, table, rows, lanes), build


@intrinsic
def prefetch(typing, vector, at, writes):
    """Ask for `vector[at]` to be brought near, to be read or, if `writes` is not empty, changed."""

    def build(context, builder, signature, values):
        element = _element(builder, _array(context, builder, signature, values, 0), values[1])
        address = builder.bitcast(element, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, INT32(len(writes)), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(vector, INDEX, writes), build


def _negated(builder, value, bits, lanes):
    """Lane i negated if bit i is set."""
    count = len(lanes)
    if count == 1:
        flip = builder.shl(bits, INT32(31))
        return builder.bitcast(builder.xor(builder.bitcast(value, INT32), flip), FLOAT)
    wide = ir.VectorType(INT32, count)
    chosen = builder.bitcast(
        builder.trunc(bits, ir.IntType(count)), ir.VectorType(ir.IntType(1), count)
    )
    signs = ir.Constant(wide, [-(1 << 31)] * count)
    negative = builder.bitcast(builder.xor(builder.bitcast(value, wide), signs), value.type)
    return builder.select(chosen, negative, value)


def _flipped(builder, value, flip, lanes):
    """Lane i moved to lane i ^ flip: bit by bit, all lanes or none."""
    step = 1
    while step < len(lanes):
        order = ir.Constant(
            ir.VectorType(INT32, len(lanes)), [lane ^ step for lane in range(len(lanes))]
        )
        moved = builder.shuffle_vector(value, value, order)
        wanted = builder.icmp_unsigned("!=", builder.and_(flip, INT32(step)), INT32(0))
        value = builder.select(wanted, moved, value)
        step *= 2
    return value
