"""The inner loops of the rotation on a CPU, compiled by numba and cached on disk.

Some columns of the matrix are moved into a tile that stays in a cache. All their
butterflies are done there, four steps over sixteen rows at a time in registers, and they are moved
out: memory is read once and written once. Where rows end within a tile, it begins so much earlier.
None of this changes the order of additions.

A matrix of less than sixteen columns lies in memory as one of so many times as many columns and
fewer rows: what is left are the butterflies of rows that have become one, number by number.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sums.kernels.cpu_lanes import LANES, butterfly_lanes, move_lanes

BEFORE, AFTER = 1, 2  # when signs are applied
GROUP = 16  # rows

_32 = np.uint64(32)
_1 = np.uint32(1)


@njit(nogil=True, cache=True, inline="always")
def _signs(words, t):
    """The bits of 32 cells from t on; `words` has one more than it needs."""
    low, high = np.uint64(np.uint32(words[t >> 5])), np.uint64(np.uint32(words[(t >> 5) + 1]))
    return np.uint32((low | high << _32) >> np.uint64(t & 31))


@njit(nogil=True, cache=True, inline="always")
def _place(row, width):
    """Of a row in a tile: rows that are 16 or 256 apart would be in each other's way in a cache."""
    return (row + (row >> 4) + (row >> 8)) * width


@njit(nogil=True, cache=True)
def tile_cells(block, width):
    return _place(block, width)


@njit(nogil=True, cache=True)
def _one(signs, i):
    return np.float32(-1) if (signs >> np.uint32(i)) & _1 else np.float32(1)


@njit(nogil=True, cache=True, inline="always")
def _load(tile, at, row, start, width, words, flips):
    """Columns of a row of the matrix. What lies behind the end is zero, negated as well."""
    if start + width <= row.size:
        for j in range(0, width, LANES):
            signs = _signs(words, start + j) if flips else np.uint32(0)
            move_lanes(tile, at + j, row, start + j, signs, np.float32(1))
    else:
        for j in range(width):
            found = row[start + j] if start + j < row.size else np.float32(0)
            tile[at + j] = found * _one(_signs(words, start + j), 0) if flips else found


@njit(nogil=True, cache=True, inline="always")
def _store(out, start, tile, at, width, words, flips, scale):
    if start + width <= out.size:
        for j in range(0, width, LANES):
            signs = _signs(words, start + j) if flips else np.uint32(0)
            move_lanes(out, start + j, tile, at + j, signs, scale)
    else:
        for j in range(min(width, out.size - start)):
            found = scale * tile[at + j]
            out[start + j] = found * _one(_signs(words, start + j), 0) if flips else found


@njit(nogil=True, cache=True, inline="always")
def _butterflies(tile, at, apart, rows, width):
    """Of rows that begin `apart` numbers from each other."""
    if rows == 16:
        for j in range(at, at + width, LANES):
            butterfly_lanes(tile, j, apart, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    elif rows == 8:
        for j in range(at, at + width, LANES):
            butterfly_lanes(tile, j, apart, (0, 0, 0, 0, 0, 0, 0, 0))
    elif rows == 4:
        for j in range(at, at + width, LANES):
            butterfly_lanes(tile, j, apart, (0, 0, 0, 0))
    elif rows == 2:
        for j in range(at, at + width, LANES):
            butterfly_lanes(tile, j, apart, (0, 0))


@njit(nogil=True, cache=True)
def _last_rows(block):
    """How many rows the last butterflies are of."""
    while block > GROUP:
        block = -(-block // GROUP)
    return block


@njit(nogil=True, cache=True)
def rotate_tile(out, row, words, blocks, block, column, width, flips, scale, tile):
    """All butterflies of columns [column, column + width) of one client's matrix."""
    last = _last_rows(block)
    stride = block // last
    for first in range(0, block, GROUP):
        some = min(GROUP, block - first)
        for r in range(first, first + some):
            start = r * blocks + column
            _load(tile, _place(r, width), row, start, width, words, flips == BEFORE)
        if stride > 1:
            _butterflies(tile, _place(first, width), width, some, width)
    between = GROUP
    while between < stride:
        for high in range(0, block, between * GROUP):
            for low in range(high, high + between):
                apart = _place(low + between, width) - _place(low, width)
                _butterflies(tile, _place(low, width), apart, GROUP, width)
        between *= GROUP
    apart = _place(stride, width)
    for low in range(stride):
        _butterflies(tile, _place(low, width), apart, last, width)
        for r in range(low, block, stride):
            start = r * blocks + column
            if start < out.size:
                _store(out, start, tile, _place(r, width), width, words, flips == AFTER, scale)


@njit(nogil=True, cache=True)
def rotate_tiles(out, rows, words, blocks, block, width, flips, scale, tile, first, last):
    """Tiles [first, last) of all clients' matrices, counted client by client."""
    tiles = -(-blocks // width)
    for i in range(first, last):
        column = min(i % tiles * width, blocks - width)
        client = i // tiles
        rotate_tile(
            out[client], rows[client], words, blocks, block, column, width, flips, scale, tile
        )


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
def rotate_narrow(out, rows, words, blocks, block, flips, scale, buffer, first, last):
    """Clients [first, last), whose matrices have few columns. buffer: for all of one's cells."""
    near = min(GROUP, block)
    width, count = near * blocks, block // near
    for client in range(first, last):
        row, target = rows[client], out[client]
        for t in range(buffer.size):
            found = row[t] if t < row.size else np.float32(0)
            buffer[t] = found * _one(_signs(words, t), 0) if flips == BEFORE else found
        _near(buffer, blocks, near)
        done = 1
        while done < count:
            some = min(GROUP, count // done)
            for high in range(0, count, done * some):
                for low in range(high, high + done):
                    _butterflies(buffer, low * width, done * width, some, width)
            done *= some
        for t in range(target.size):
            found = scale * buffer[t]
            target[t] = found * _one(_signs(words, t), 0) if flips == AFTER else found
