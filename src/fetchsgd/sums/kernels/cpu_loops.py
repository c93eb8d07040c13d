"""The inner loops of the rotation on a CPU, compiled by numba and cached on disk.

Some columns of the matrix are a strip. Of 64 neighbouring rows of it at a time all butterflies are
done in a buffer that stays in a near cache, eight rows at a time in registers; then those of rows
that are 64 apart, in the same way. In between the strip lies in a farther cache: memory is read
once and written once. Where the matrix ends within a strip, it begins so much earlier. None of
this changes the order of additions.

A matrix of less than sixteen columns lies in memory as one of so many times as many columns and
fewer rows: what is left are the butterflies of rows that have become one, number by number.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sums.kernels.cpu_lanes import LANES, fetch, fold, fold_back, fold_scaled, fold_signed

NEAR = 64  # neighbouring rows
GROUP = 8  # rows in registers


@njit(nogil=True, cache=True, inline="always")
def _pitch(width):
    """From 64 rows of a strip to the next; whole powers of two would meet in a cache."""
    return NEAR * width + LANES


@njit(nogil=True, cache=True)
def strip_cells(block, width):
    return block // NEAR * _pitch(width)


@njit(nogil=True, cache=True, inline="always")
def _fold_rows(out, to, spread, source, at, apart, rows, width):
    """All columns of some rows that begin `apart` numbers from each other."""
    if rows == 8:
        for j in range(0, width, LANES):
            fold(out, to + j, spread, source, at + j, apart, (0, 0, 0, 0, 0, 0, 0, 0))
    elif rows == 4:
        for j in range(0, width, LANES):
            fold(out, to + j, spread, source, at + j, apart, (0, 0, 0, 0))
    elif rows == 2:
        for j in range(0, width, LANES):
            fold(out, to + j, spread, source, at + j, apart, (0, 0))


@njit(nogil=True, cache=True, inline="always")
def _fold_out(out, to, spread, source, at, apart, rows, width, back, scale, signs, bit, bits):
    """The last butterflies of 1, 2, 4 or 8 rows, with all that comes behind them."""
    for j in range(0, width, LANES):
        if back:
            given = (0, 0, 0, 0, 0, 0, 0, 0)
            t = bit + j
            if rows == 8:
                fold_back(out, to + j, spread, source, at + j, apart, scale, signs, t, bits, given)
            elif rows == 4:
                some = (0, 0, 0, 0)
                fold_back(out, to + j, spread, source, at + j, apart, scale, signs, t, bits, some)
            elif rows == 2:
                fold_back(out, to + j, spread, source, at + j, apart, scale, signs, t, bits, (0, 0))
            else:
                fold_back(out, to + j, spread, source, at + j, apart, scale, signs, t, bits, (0,))
        elif rows == 8:
            given = (0, 0, 0, 0, 0, 0, 0, 0)
            fold_scaled(out, to + j, spread, source, at + j, apart, scale, given)
        elif rows == 4:
            fold_scaled(out, to + j, spread, source, at + j, apart, scale, (0, 0, 0, 0))
        elif rows == 2:
            fold_scaled(out, to + j, spread, source, at + j, apart, scale, (0, 0))
        else:
            fold_scaled(out, to + j, spread, source, at + j, apart, scale, (0,))


@njit(nogil=True, cache=True)
def _read(buffer, to, row, start, blocks, width, back, signs, edge):
    """Eight rows of the matrix and their butterflies. What lies behind the end is zero."""
    source, at, apart = row, start, blocks
    if start + (GROUP - 1) * blocks + width > row.size:
        for r in range(GROUP):
            for j in range(width):
                t = start + r * blocks + j
                edge[r * width + j] = row[t] if t < row.size else np.float32(0)
        source, at, apart = edge, 0, width
    for j in range(0, width, LANES):
        given = (0, 0, 0, 0, 0, 0, 0, 0)
        t = start + j
        # Rows lie in as many pages: left to itself, a processor finds out too late what comes next.
        fetch(row, t + GROUP * blocks, blocks, given)
        if back:
            fold(buffer, to + j, width, source, at + j, apart, given)
            continue
        fold_signed(buffer, to + j, width, source, at + j, apart, signs, t, blocks, given)


@njit(nogil=True, cache=True)
def _write(out, start, apart, buffer, at, between, rows, width, back, scale, signs, edge):
    """The last butterflies of rows, `between` apart in the buffer and `apart` in the matrix."""
    if start + (rows - 1) * apart + width <= out.size:
        _fold_out(
            out, start, apart, buffer, at, between, rows, width, back, scale, signs, start, apart
        )
        return
    _fold_out(edge, 0, width, buffer, at, between, rows, width, back, scale, signs, start, apart)
    for r in range(rows):
        for j in range(min(width, out.size - start - r * apart)):
            out[start + r * apart + j] = edge[r * width + j]


@njit(nogil=True, cache=True)
def rotate_strip(out, row, signs, blocks, block, column, width, back, scale, strip, buffer, edge):
    """All butterflies of columns [column, column + width) of one client's matrix."""
    pitch, groups = _pitch(width), block // NEAR
    for g in range(groups):
        for r in range(0, NEAR, GROUP):
            start = (NEAR * g + r) * blocks + column
            _read(buffer, r * width, row, start, blocks, width, back, signs, edge)
        for r in range(GROUP):
            at, apart = r * width, GROUP * width
            _fold_rows(strip, g * pitch + at, apart, buffer, at, apart, GROUP, width)
    some = min(GROUP, groups)
    for low in range(NEAR):
        for g in range(0, groups, some):
            at = g * pitch + low * width
            _fold_rows(buffer, g * width, width, strip, at, pitch, some, width)
        for g in range(some):
            start = (NEAR * g + low) * blocks + column
            apart, between, rows = NEAR * some * blocks, some * width, groups // some
            _write(
                out, start, apart, buffer, g * width, between, rows, width, back, scale, signs, edge
            )


@njit(nogil=True, cache=True)
def _aligned(size):
    """New memory in which no vector lies in two lines of a cache."""
    found = np.empty(size + LANES, np.float32)
    first = -(found.ctypes.data // 4) % LANES
    return found[first : first + size]


@njit(nogil=True, cache=True)
def rotate_strips(out, rows, signs, blocks, block, width, back, scale, first, last):
    """Strips [first, last) of all clients' matrices, counted client by client."""
    strips = -(-blocks // width)
    strip = _aligned(strip_cells(block, width))
    buffer = _aligned(NEAR * width)
    edge = _aligned(GROUP * width)
    for i in range(first, last):
        column = min(i % strips * width, blocks - width)
        row, target = rows[i // strips], out[i // strips]
        rotate_strip(
            target, row, signs, blocks, block, column, width, back, scale, strip, buffer, edge
        )


@njit(nogil=True, cache=True)
def _one(signs, t):
    return np.float32(-1) if (signs[t >> 3] >> np.uint8(t & 7)) & 1 else np.float32(1)


@njit(nogil=True, cache=True)
def _near(buffer, blocks, rows):
    """The butterflies of `rows` neighbouring rows, number by number."""
    half = 1
    while half < rows:
        apart = half * blocks
        for first in range(0, buffer.size, 2 * apart):
            for j in range(first, first + apart):
                a, b = buffer[j], buffer[j + apart]
                buffer[j], buffer[j + apart] = a + b, a - b
        half *= 2


@njit(nogil=True, cache=True)
def rotate_narrow(out, rows, signs, blocks, block, back, scale, first, last):
    """Clients [first, last), whose matrices have few columns."""
    near = min(LANES, block)
    width, count = near * blocks, block // near
    buffer = np.empty(block * blocks, np.float32)
    for client in range(first, last):
        row, target = rows[client], out[client]
        for t in range(buffer.size):
            found = row[t] if t < row.size else np.float32(0)
            buffer[t] = found if back else found * _one(signs, t)
        _near(buffer, blocks, near)
        done = 1
        while done < count:
            some = min(GROUP, count // done)
            for high in range(0, count, done * some):
                for low in range(high, high + done):
                    at, apart = low * width, done * width
                    _fold_rows(buffer, at, apart, buffer, at, apart, some, width)
            done *= some
        for t in range(target.size):
            found = scale * buffer[t]
            target[t] = found * _one(signs, t) if back else found
