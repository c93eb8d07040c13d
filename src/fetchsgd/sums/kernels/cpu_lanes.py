"""Sixteen neighbouring columns at once, in vector instructions.

Left to itself, numba cannot know that the rows of a butterfly do not overlap, and adds number by
number. Each function does all butterflies of 1, 2, 4 or 8 rows in registers: as many as the tuple
`rows` is long, which is part of its type. Rows begin at `source[at]`, `source[at + apart]`, ...,
and go to `out[to]`, `out[to + spread]`, ...; both may be the same array.

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
INT = ir.IntType(32)
PLACE = ir.IntType(64)
VECTOR = ir.VectorType(ir.FloatType(), LANES)
BITS = ir.VectorType(INT, LANES)
BYTES = ir.IntType(8).as_pointer()
MASK = ir.VectorType(ir.IntType(1), LANES)


@intrinsic
def fold(typing, out, to, spread, source, at, apart, rows):
    """Butterflies alone."""

    def build(context, builder, signature, values):
        found = _loaded(builder, _data(context, builder, signature, values, 3), *values[4:6], rows)
        _store(
            builder,
            _data(context, builder, signature, values, 0),
            *values[1:3],
            _added(builder, found),
        )
        return context.get_dummy_value()

    place = types.int64
    return types.void(out, place, place, source, place, place, rows), build


@intrinsic
def fold_signed(typing, out, to, spread, source, at, apart, signs, bit, bits_apart, rows):
    """Of numbers that are negated first, by bits from `bit`, `bit + bits_apart`, ... on."""

    def build(context, builder, signature, values):
        found = _loaded(builder, _data(context, builder, signature, values, 3), *values[4:6], rows)
        bytes_of = _data(context, builder, signature, values, 6)
        found = _flipped(builder, found, bytes_of, *values[7:9])
        _store(
            builder,
            _data(context, builder, signature, values, 0),
            *values[1:3],
            _added(builder, found),
        )
        return context.get_dummy_value()

    place = types.int64
    given = (out, place, place, source, place, place, signs, place, place, rows)
    return types.void(*given), build


@intrinsic
def fold_scaled(typing, out, to, spread, source, at, apart, scale, rows):
    """Butterflies, then times `scale`."""

    def build(context, builder, signature, values):
        found = _loaded(builder, _data(context, builder, signature, values, 3), *values[4:6], rows)
        found = _scaled(builder, _added(builder, found), values[6])
        _store(builder, _data(context, builder, signature, values, 0), *values[1:3], found)
        return context.get_dummy_value()

    place = types.int64
    return types.void(out, place, place, source, place, place, types.float32, rows), build


@intrinsic
def fold_back(typing, out, to, spread, source, at, apart, scale, signs, bit, bits_apart, rows):
    """Butterflies, then times `scale`, then negated."""

    def build(context, builder, signature, values):
        found = _loaded(builder, _data(context, builder, signature, values, 3), *values[4:6], rows)
        found = _scaled(builder, _added(builder, found), values[6])
        bytes_of = _data(context, builder, signature, values, 7)
        found = _flipped(builder, found, bytes_of, *values[8:10])
        _store(builder, _data(context, builder, signature, values, 0), *values[1:3], found)
        return context.get_dummy_value()

    place = types.int64
    given = (out, place, place, source, place, place, types.float32, signs, place, place, rows)
    return types.void(*given), build


@intrinsic
def fetch(typing, source, at, apart, rows):
    """Begins to load rows that are needed soon. Places behind the end do no harm."""

    def build(context, builder, signature, values):
        data, (at, apart) = _data(context, builder, signature, values, 0), values[1:3]
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [BYTES], ir.FunctionType(ir.VoidType(), [BYTES, INT, INT, INT])
        )
        for _ in range(len(rows)):
            place = builder.bitcast(builder.gep(data, [at]), BYTES)
            builder.call(prefetch, [place, INT(0), INT(3), INT(1)])  # to read, near, data
            at = builder.add(at, apart)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, rows), build


def _data(context, builder, signature, values, index):
    """Where the numbers of an array begin."""
    array = context.make_array(signature.args[index])(context, builder, values[index])
    return array.data


def _loaded(builder, data, at, apart, rows):
    found = []
    for _ in range(len(rows)):
        place = builder.bitcast(builder.gep(data, [at]), VECTOR.as_pointer())
        found.append(builder.load(place, align=4))
        at = builder.add(at, apart)
    return found


def _store(builder, data, at, apart, found):
    for value in found:
        place = builder.bitcast(builder.gep(data, [at]), VECTOR.as_pointer())
        builder.store(value, place, align=4)
        at = builder.add(at, apart)


def _added(builder, found):
    """Butterflies of neighbours first, then of those that are 2 and 4 apart."""
    half = 1
    while half < len(found):
        found = [
            builder.fsub(found[i - half], found[i])
            if i & half
            else builder.fadd(found[i], found[i + half])
            for i in range(len(found))
        ]
        half *= 2
    return found


def _scaled(builder, found, scale):
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scale, INT(0))
    all_lanes = ir.Constant(BITS, [0] * LANES)
    factor = builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), all_lanes)
    return [builder.fmul(value, factor) for value in found]


def _flipped(builder, found, bytes_of, bit, bits_apart):
    """Negated where a bit is set; 16 bits from any bit on lie within four bytes."""
    flipped = []
    for value in found:
        place = builder.gep(bytes_of, [builder.lshr(bit, PLACE(3))])
        word = builder.load(builder.bitcast(place, INT.as_pointer()), align=1)
        word = builder.lshr(word, builder.trunc(builder.and_(bit, PLACE(7)), INT))
        mask = builder.bitcast(builder.trunc(word, ir.IntType(LANES)), MASK)
        plain = builder.bitcast(value, BITS)
        other = builder.xor(plain, ir.Constant(BITS, [0x80000000] * LANES))
        flipped.append(builder.bitcast(builder.select(mask, other, plain), VECTOR))
        bit = builder.add(bit, bits_apart)
    return flipped
