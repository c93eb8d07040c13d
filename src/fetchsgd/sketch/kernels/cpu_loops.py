"""The inner loops of the CPU kernels, compiled by numba and cached on disk.

They walk over runs of `block` neighbouring floats, written so that each becomes plain vector
instructions, and release the interpreter lock, so that threads run them side by side.
A packed placement is `start << 1 | negative` (hashing.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Blocks below this length are walked through coordinate by coordinate.
SHORT = 16
# Coordinates that are estimated before any is looked at.
WINDOW = 256


@njit(nogil=True, cache=True)
def add_runs(out, vector, first, placements, block, left, right):
    """Add a piece that starts at coordinate `first` to columns [left, right) of a row."""
    cols = out.size
    last = first + vector.size
    if block < SHORT:
        _add_coordinates(out, vector, first, placements, block, left, right)
        return
    for b in range(first // block, (last - 1) // block + 1):
        packed = placements[b]
        begin = max(first, b * block)
        length = min(last, (b + 1) * block) - begin
        column = (packed >> 1) + begin - b * block
        if column >= cols:
            column -= cols
        run = vector[begin - first : begin - first + length]
        until_wrap = min(length, cols - column)
        _add_run(out, run[:until_wrap], column, packed & 1, left, right)
        if until_wrap < length:
            _add_run(out, run[until_wrap:], 0, packed & 1, left, right)


@njit(nogil=True, cache=True)
def _add_coordinates(out, vector, first, placements, block, left, right):
    b, within = first // block, first % block
    for i in range(vector.size):
        packed = placements[b]
        column = (packed >> 1) + within
        if column >= out.size:
            column -= out.size
        if left <= column < right:
            if packed & 1:
                out[column] -= vector[i]
            else:
                out[column] += vector[i]
        within += 1
        if within == block:
            b, within = b + 1, 0


@njit(nogil=True, cache=True)
def _add_run(out, run, column, negative, left, right):
    low = max(column, left)
    high = min(column + run.size, right)
    if low >= high:
        return
    target = out[low:high]
    source = run[low - column : high - column]
    # Two loops over whole slices: both become plain vector instructions.
    if negative:
        for i in range(target.size):
            target[i] -= source[i]
    else:
        for i in range(target.size):
            target[i] += source[i]


@njit(nogil=True, cache=True)
def add_entries(out, indices, values, placements, block):
    """Add single coordinates to a row."""
    for n in range(indices.size):
        b = indices[n] // block
        packed = placements[b]
        column = ((packed >> 1) + indices[n] - b * block) % out.size
        if packed & 1:
            out[column] -= values[n]
        else:
            out[column] += values[n]


@njit(nogil=True, cache=True)
def _read_run(target, row, column, negative):
    until_wrap = min(target.size, row.size - column)
    _copy_run(target[:until_wrap], row[column : column + until_wrap], negative)
    if until_wrap < target.size:
        _copy_run(target[until_wrap:], row[: target.size - until_wrap], negative)


@njit(nogil=True, cache=True)
def _copy_run(target, source, negative):
    if negative:
        for i in range(target.size):
            target[i] = -source[i]
    else:
        for i in range(target.size):
            target[i] = source[i]


@njit(nogil=True, cache=True)
def _block_medians(out, runs, table, placements, b, network, middle):
    """The estimates of block b, or of as much of it as `out` has room for."""
    rows, cols = table.shape
    length = out.size
    if rows == 1:
        _read_run(out, table[0], placements[0, b] >> 1, placements[0, b] & 1)
        return
    wraps = False
    for row in range(rows):
        wraps |= (placements[row, b] >> 1) + length > cols
    # The usual numbers of rows keep everything in registers, some three times faster.
    if rows == 3 and not wraps:
        _median_of_3(
            out,
            _run(table, placements, 0, b, length),
            _run(table, placements, 1, b, length),
            _run(table, placements, 2, b, length),
            _sign(placements, 0, b),
            _sign(placements, 1, b),
            _sign(placements, 2, b),
        )
    elif rows == 5 and not wraps:
        _median_of_5(
            out,
            _run(table, placements, 0, b, length),
            _run(table, placements, 1, b, length),
            _run(table, placements, 2, b, length),
            _run(table, placements, 3, b, length),
            _run(table, placements, 4, b, length),
            _sign(placements, 0, b),
            _sign(placements, 1, b),
            _sign(placements, 2, b),
            _sign(placements, 3, b),
            _sign(placements, 4, b),
        )
    else:
        _median_by_network(out, runs[:, :length], table, placements, b, network, middle)


@njit(nogil=True, cache=True)
def _median_by_network(out, runs, table, placements, b, network, middle):
    for row in range(table.shape[0]):
        packed = placements[row, b]
        _read_run(runs[row], table[row], packed >> 1, packed & 1)
    for step in range(network.shape[0]):
        _compare_exchange(runs[network[step, 0]], runs[network[step, 1]])
    lower, upper = runs[middle[0]], runs[middle[1]]
    if table.shape[0] % 2 == 1:
        out[:] = lower
    else:
        half = np.float32(0.5)
        for i in range(out.size):
            out[i] = half * lower[i] + half * upper[i]


@njit(nogil=True, cache=True)
def _run(table, placements, row, b, length):
    start = placements[row, b] >> 1
    return table[row, start : start + length]


@njit(nogil=True, cache=True)
def _sign(placements, row, b):
    return np.float32(1 - 2 * (placements[row, b] & 1))


@njit(nogil=True, cache=True)
def _smaller(a, b):
    return a if a < b else b


@njit(nogil=True, cache=True)
def _larger(a, b):
    return a if a > b else b


@njit(nogil=True, cache=True)
def _middle_of_3(a, b, c):
    return _larger(_smaller(a, b), _smaller(_larger(a, b), c))


@njit(nogil=True, cache=True)
def _median_of_3(out, a, b, c, sign_a, sign_b, sign_c):
    for i in range(out.size):
        out[i] = _middle_of_3(sign_a * a[i], sign_b * b[i], sign_c * c[i])


@njit(nogil=True, cache=True)
def _median_of_5(out, a, b, c, d, e, sign_a, sign_b, sign_c, sign_d, sign_e):
    for i in range(out.size):
        p, q, r, s = sign_a * a[i], sign_b * b[i], sign_c * c[i], sign_d * d[i]
        # The smallest and the largest of four cannot be the middle of five.
        low = _larger(_smaller(p, q), _smaller(r, s))
        high = _smaller(_larger(p, q), _larger(r, s))
        out[i] = _middle_of_3(low, high, sign_e * e[i])


@njit(nogil=True, cache=True)
def _compare_exchange(small, large):
    for i in range(small.size):
        a, b = small[i], large[i]
        small[i] = a if a < b else b
        large[i] = b if a < b else a


@njit(nogil=True, cache=True)
def _coordinate_median(sorted_rows, table, placements, b, within, middle):
    """The estimate of a single coordinate, by insertion sort over its rows."""
    rows, cols = table.shape
    for row in range(rows):
        packed = placements[row, b]
        column = (packed >> 1) + within
        if column >= cols:
            column -= cols
        value = -table[row, column] if packed & 1 else table[row, column]
        at = row
        while at > 0 and sorted_rows[at - 1] > value:
            sorted_rows[at] = sorted_rows[at - 1]
            at -= 1
        sorted_rows[at] = value
    if rows % 2 == 1:
        return sorted_rows[middle[0]]
    half = np.float32(0.5)
    return half * sorted_rows[middle[0]] + half * sorted_rows[middle[1]]


@njit(nogil=True, cache=True)
def _read_coordinates(window, row, placements, b, block):
    """The estimates of the only row, from block b on."""
    if block == 1:
        for i in range(window.size):
            packed = placements[b + i]
            window[i] = row[packed >> 1] * np.float32(1 - 2 * (packed & 1))
        return
    for at in range(0, window.size, block):
        packed = placements[b]
        negative = packed & 1
        column = packed >> 1
        for i in range(at, min(at + block, window.size)):
            window[i] = -row[column] if negative else row[column]
            column += 1
            if column == row.size:
                column = 0
        b += 1


@njit(nogil=True, cache=True)
def query_entries(out, indices, table, placements, block, middle):
    """The estimates of single coordinates."""
    sorted_rows = np.empty(table.shape[0], dtype=np.float32)
    for n in range(indices.size):
        b = indices[n] // block
        within = indices[n] - b * block
        out[n] = _coordinate_median(sorted_rows, table, placements, b, within, middle)


@njit(nogil=True, cache=True)
def _fill_window(window, runs, sorted_rows, table, placements, b, network, middle):
    """The estimates of all blocks from b on that the window has room for."""
    block = runs.shape[1]
    if block >= SHORT:
        for at in range(0, window.size, block):
            part = window[at : at + block]
            _block_medians(part, runs, table, placements, b, network, middle)
            b += 1
        return
    if table.shape[0] == 1:
        _read_coordinates(window, table[0], placements[0], b, block)
        return
    within = 0
    for at in range(window.size):
        window[at] = _coordinate_median(sorted_rows, table, placements, b, within, middle)
        within += 1
        if within == block:
            b, within = b + 1, 0


@njit(nogil=True, cache=True)
def write_estimates(out, table, placements, block, network, middle, start, stop):
    """The estimates of blocks [start, stop), written to their place in `out`."""
    runs = np.empty((table.shape[0], block), dtype=np.float32)
    sorted_rows = np.empty(table.shape[0], dtype=np.float32)
    window = out[start * block : stop * block]
    _fill_window(window, runs, sorted_rows, table, placements, start, network, middle)


@njit(nogil=True, cache=True)
def collect_estimates(
    indices,
    values,
    threshold,
    room_above,
    room_equal,
    table,
    dim,
    placements,
    block,
    network,
    middle,
    start,
    stop,
):
    """Keep the estimates of blocks [start, stop) that reach the threshold, and count them all."""
    runs = np.empty((table.shape[0], block), dtype=np.float32)
    sorted_rows = np.empty(table.shape[0], dtype=np.float32)
    step = max(WINDOW // block, 1)
    window = np.empty(step * block, dtype=np.float32)
    last = min(stop * block, dim)
    kept = above = equal = 0
    for b in range(start, stop, step):
        first = b * block
        seen = window[: min(window.size, last - first)]
        _fill_window(seen, runs, sorted_rows, table, placements, b, network, middle)
        reached = 0  # counted without a branch, since nearly every window has none
        for i in range(seen.size):
            reached += abs(seen[i]) >= threshold
        if reached == 0:
            continue
        for i in range(seen.size):
            size = abs(seen[i])
            if size > threshold:
                take = above < room_above
                above += 1
            elif size == threshold:
                take = equal < room_equal
                equal += 1
            else:
                take = False
            if take:
                indices[kept] = first + i
                values[kept] = seen[i]
                kept += 1
    return kept, above, equal


@njit(nogil=True, cache=True)
def sum_of_squares(row):
    """In float64 and in one fixed order: sixteen interleaved sums, then those."""
    sums = np.zeros(16)
    whole = row.size // 16 * 16
    for at in range(0, whole, 16):
        for lane in range(16):
            sums[lane] += np.float64(row[at + lane]) ** 2
    total = 0.0
    for lane in range(16):
        total += sums[lane]
    for at in range(whole, row.size):
        total += np.float64(row[at]) ** 2
    return total
