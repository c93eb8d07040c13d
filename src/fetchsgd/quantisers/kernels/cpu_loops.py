"""The inner loops of quantisation on a CPU, compiled by numba and cached on disk.

They go run by run through small buffers that stay in the cache, one simple loop after another, so
that each becomes plain vector instructions; numba computes in 64 bits what is not cast at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

RUN = 256
QUARTER = 64
# Runs whose sum stays in the cache while row after row is added.
RUNS_IN_CACHE = 64

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIER_A, MULTIPLIER_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEP_A, KEY_STEP_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

# Bits of floats: see reference.py.
INFINITY, NAN = np.uint32(0x7F800000), np.uint32(0x7FC00000)
LARGEST, SMALLEST = np.uint32(0x7F7F0000), np.uint32(0x0D800000)
UPPER, SIGN = np.uint32(0xFFFF0000), np.uint32(0x80000000)
BELOW_SIGN, LOWER = np.uint32(0x7FFFFFFF), np.uint32(0xFFFF)


@njit(nogil=True, cache=True)
def _fill_words(words, key, stream, run):
    """Philox4x32-10: a random word for each cell of a run."""
    key_low, key_high = np.uint64(key) & LOW, np.uint64(key) >> HALF
    stream_low, stream_high = np.uint64(stream) & LOW, np.uint64(stream) >> HALF
    for g in range(QUARTER):
        a, b, c, d = np.uint64(g), np.uint64(run) & LOW, stream_low, stream_high
        key_a, key_b = key_low, key_high
        # All rounds of a counter in one go: the loop over g then works in registers.
        for _ in range(10):
            p, q = a * MULTIPLIER_A, c * MULTIPLIER_B
            a, b = (q >> HALF) ^ b ^ key_a, q & LOW
            c, d = (p >> HALF) ^ d ^ key_b, p & LOW
            key_a, key_b = (key_a + KEY_STEP_A) & LOW, (key_b + KEY_STEP_B) & LOW
        words[g] = np.uint32(a)
        words[g + 64] = np.uint32(b)
        words[g + 128] = np.uint32(c)
        words[g + 192] = np.uint32(d)


@njit(nogil=True, cache=True)
def fill_words(words, key, stream):
    """The words of as many runs as there is room for."""
    for run in range(words.size // RUN):
        _fill_words(words[run * RUN : (run + 1) * RUN], key, stream, run)


@njit(nogil=True, cache=True)
def _cut_to_bfloat16(size, extra):
    """Bits of a magnitude, moved up by `extra` and cut to bfloat16; none turns into infinity."""
    moved = np.uint32(size + extra) & UPPER
    finite = LARGEST if moved > LARGEST else moved
    other = NAN if size > INFINITY else INFINITY
    return finite if size < INFINITY else other


@njit(nogil=True, cache=True)
def _scale_bits(cells):
    """The bits of a run's scale."""
    # Magnitudes are below 2^31: signed, every processor has an instruction for their maximum.
    bits = cells.view(np.int32)
    size = np.int32(0)
    for i in range(RUN):
        size = max(size, bits[i] & np.int32(0x7FFFFFFF))
    scale = _cut_to_bfloat16(np.uint32(size), LOWER)
    return np.uint32(0) if scale < SMALLEST else scale


@njit(nogil=True, cache=True)
def _round_levels(stored, cells, factor, top, words):
    """What is stored for each cell of a run: its level + top."""
    limit = np.float32(top << 24)
    offset = np.uint32(top << 24)
    for i in range(RUN):
        place = cells[i] * factor * np.float32(1 << 24)
        place = limit if place > limit else place
        place = -limit if place < -limit else place
        # The sum wraps around in 32 bits and is not negative.
        moved = np.uint32(np.uint32(np.int32(place)) + offset)
        stored[i] = np.uint32(moved + np.uint32(words[i] >> np.uint32(8))) >> np.uint32(24)


@njit(nogil=True, cache=True)
def _pack(symbols, stored, bits):
    stride = symbols.size
    symbols[:] = stored[:stride]
    for part in range(1, RUN // stride):
        shift = np.uint8(part * bits)
        source = stored[part * stride : (part + 1) * stride]
        for j in range(stride):
            symbols[j] |= np.uint8(source[j] << shift)


@njit(nogil=True, cache=True)
def quantise_runs(symbols, scales, cells, bits, per_symbol, key, stream, first, last):
    """Scales and symbols of runs [first, last) of one row."""
    top = (1 << (bits - 1)) - 1
    stride = RUN // per_symbol
    words = np.empty(RUN, np.uint32)
    stored = np.empty(RUN, np.uint8)
    filled = np.zeros(RUN, np.float32)
    scale_bits = scales.view(np.uint32)
    for run in range(first, last):
        part = cells[run * RUN : (run + 1) * RUN]
        if part.size < RUN:
            filled[: part.size] = part
            part = filled
        scale = _scale_bits(part)
        scale_bits[run] = scale
        if scale == 0 or scale >= INFINITY:
            stored[:] = top
        else:
            _fill_words(words, key, stream, run)
            _round_levels(stored, part, np.float32(top) / scales[run], top, words)
        _pack(symbols[run * stride : (run + 1) * stride], stored, bits)


@njit(nogil=True, cache=True)
def _add_run(total, symbols, step, bits):
    """Add step * level to one run."""
    top = np.int32((1 << (bits - 1)) - 1)
    mask = np.int32((1 << bits) - 1)
    stride = symbols.size
    for part in range(RUN // stride):
        target = total[part * stride : (part + 1) * stride]
        shift = np.int32(part * bits)
        for j in range(stride):
            stored = np.int32(symbols[j]) >> shift & mask
            target[j] += step * np.float32(np.int32(stored - top))


@njit(nogil=True, cache=True)
def sum_runs(total, symbols, scales, weights, bits, per_symbol, first, last):
    """Add up runs [first, last) of all rows, row after row."""
    top = np.float32((1 << (bits - 1)) - 1)
    stride = RUN // per_symbol
    total[first * RUN : last * RUN] = 0
    for begin in range(first, last, RUNS_IN_CACHE):
        for row in range(weights.size):
            for run in range(begin, min(begin + RUNS_IN_CACHE, last)):
                step = weights[row] * (scales[row, run] / top)
                source = symbols[row, run * stride : (run + 1) * stride]
                _add_run(total[run * RUN : (run + 1) * RUN], source, step, bits)


@njit(nogil=True, cache=True)
def round_runs(out, cells, key, stream, first, last):
    """Runs [first, last) of one row, rounded to bfloat16; both are given as bits."""
    words = np.empty(RUN, np.uint32)
    for run in range(first, last):
        source = cells[run * RUN : (run + 1) * RUN]
        target = out[run * RUN : (run + 1) * RUN]
        _fill_words(words, key, stream, run)
        for i in range(source.size):
            size = source[i] & BELOW_SIGN
            target[i] = _cut_to_bfloat16(size, words[i] & LOWER) | source[i] & SIGN


@njit(nogil=True, cache=True)
def all_allowed(symbols, allowed):
    """Whether each symbol is one of the allowed."""
    bad = 0
    for i in range(symbols.size):
        bad += not allowed[symbols[i]]
    return bad == 0
