"""A few neighbouring floats in one vector instruction, for the loops of the CPU kernels.

Left to itself, numba makes vector instructions of long loops alone, and blocks of a few coordinates
are short. Hence these functions. How many floats they move at once is the length of the tuple
`lanes`, and the number of rows that of the tuple `rows`: lengths are part of a tuple's type, so
loops are compiled for each that is in use, and the compiler sees constants.

Numba's cache on disk looks at the file of a loop alone: touch those files after a change here.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# Numba's compiler, which these functions extend, has no types, and passes more than they need.

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fetchsgd.sketch.kernels.median import median_network, middle

INT32, INT64, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
INDEX = types.uint64


@intrinsic
def add_lanes(typing, out, column, vector, at, packed, lanes):
    """`out[column + i] += sign * vector[at + i]` for every lane i, with the sign of `packed`."""

    def build(context, builder, signature, values):
        target = _element(builder, _array(context, builder, signature, values, 0), values[1])
        source = _element(builder, _array(context, builder, signature, values, 2), values[3])
        signed = _signed(builder, _load(builder, source, lanes), values[4], lanes)
        _store(builder, builder.fadd(_load(builder, target, lanes), signed), target, lanes)
        return context.get_dummy_value()

    return types.void(out, INDEX, vector, INDEX, types.int32, lanes), build


@intrinsic
def median_lanes(typing, out, at, table, within, placements, b, rows, lanes):
    """`out[at + i]` becomes the estimate of place `within + i` of block b, for every lane i.

    A single lane may lie behind a wrap-around; of several lanes none may.
    """

    def build(context, builder, signature, values):
        if len(rows) == 0:  # compiled where rows are too many, but not run
            return context.get_dummy_value()
        target = _element(builder, _array(context, builder, signature, values, 0), values[1])
        cells = _array(context, builder, signature, values, 2)
        packs = _array(context, builder, signature, values, 4)
        runs = []
        for row in range(len(rows)):
            packed = builder.load(_cell(builder, packs, row, values[5]))
            start = builder.zext(builder.lshr(packed, INT32(1)), INT64)
            column = builder.add(start, values[3])
            if len(lanes) == 1:
                column = _wrapped(builder, column, cells)
            run = _load(builder, _cell(builder, cells, row, column), lanes)
            runs.append(_signed(builder, run, packed, lanes))
        _store(builder, _median(builder, runs, lanes), target, lanes)
        return context.get_dummy_value()

    return types.void(out, INDEX, table, INDEX, placements, INDEX, rows, lanes), build


@intrinsic
def reached_lanes(typing, vector, at, threshold, lanes):
    """Bit i says whether `abs(vector[at + i]) >= threshold`, which must not be below 0."""

    def build(context, builder, signature, values):
        first = _element(builder, _array(context, builder, signature, values, 0), values[1])
        seen = _load(builder, first, lanes)
        high = _spread(builder, values[2], lanes)
        low = _spread(builder, builder.fneg(values[2]), lanes)
        reached = builder.or_(
            builder.fcmp_ordered(">=", seen, high), builder.fcmp_ordered("<=", seen, low)
        )
        return builder.zext(builder.bitcast(reached, ir.IntType(len(lanes))), INT64)

    return types.int64(vector, INDEX, types.float32, lanes), build


@intrinsic
def lowest_bit(typing, bits):
    """The place of the lowest bit that is set, in a number other than 0."""

    def build(context, builder, signature, values):
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.int64(types.int64), build


@intrinsic
def set_bits(typing, bits):
    """How many bits of a number are set."""

    def build(context, builder, signature, values):
        return builder.ctpop(values[0])

    return types.int64(types.int64), build


def _array(context, builder, signature, values, which):
    """The array in argument `which`."""
    assert signature.args[which].layout == "C", "lanes are neighbours in memory"
    return context.make_array(signature.args[which])(context, builder, values[which])


def _element(builder, vector, at):
    return builder.gep(vector.data, [at])


def _cell(builder, matrix, row, column):
    width = builder.extract_value(matrix.shape, 1)
    return builder.gep(matrix.data, [builder.add(builder.mul(width, INT64(row)), column)])


def _wrapped(builder, column, matrix):
    width = builder.extract_value(matrix.shape, 1)
    behind = builder.icmp_unsigned(">=", column, width)
    return builder.select(behind, builder.sub(column, width), column)


def _load(builder, pointer, lanes):
    if len(lanes) == 1:
        return builder.load(pointer)
    wide = ir.VectorType(FLOAT, len(lanes))
    return builder.load(builder.bitcast(pointer, wide.as_pointer()), align=4)


def _store(builder, value, pointer, lanes):
    if len(lanes) == 1:
        builder.store(value, pointer)
    else:
        builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


def _signed(builder, value, packed, lanes):
    """The value, negated if the lowest bit of `packed` is set: it moves to the bit of the sign."""
    flip = _spread(builder, builder.shl(packed, INT32(31)), lanes)
    bits = builder.bitcast(value, flip.type)
    return builder.bitcast(builder.xor(bits, flip), value.type)


def _spread(builder, value, lanes):
    """The value in every lane."""
    if len(lanes) == 1:
        return value
    nothing = ir.Constant(ir.VectorType(value.type, len(lanes)), ir.Undefined)
    first = builder.insert_element(nothing, value, INT32(0))
    from_first = ir.Constant(ir.VectorType(INT32, len(lanes)), [0] * len(lanes))
    return builder.shuffle_vector(first, nothing, from_first)


def _median(builder, runs, lanes):
    """The median over runs, lane by lane, in registers."""
    for i, j in median_network(len(runs)):
        a, b = runs[i], runs[j]
        # A comparison for each: two that share one can become a branch.
        runs[i] = builder.select(builder.fcmp_ordered("<", a, b), a, b)
        runs[j] = builder.select(builder.fcmp_ordered(">", a, b), a, b)
    lower, upper = (runs[i] for i in middle(len(runs)))
    if len(runs) % 2 == 1:
        return lower
    half = _spread(builder, FLOAT(0.5), lanes)
    return builder.fadd(builder.fmul(half, lower), builder.fmul(half, upper))
