"""TEMP"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fetchsgd.wire import Floats, quantise_rows, round_to_bfloat16
from fetchsgd.wire.sizes import quantised_bytes


@dataclass
class F:
    rows: object
    bits: int

    def weighted_sum(self, w):
        return w @ self.rows

    def dequantise(self):
        return self.rows

    def section_bytes(self):
        return torch.full(
            (len(self.rows),), self.rows.shape[1] * self.bits / 8, dtype=torch.float64
        )

    def row(self, i):
        return Floats(self.rows[i] if self.bits == 32 else self.rows[i].bfloat16())


@dataclass
class Q:
    q: object

    def weighted_sum(self, w):
        return self.q.weighted_sum(w)

    def dequantise(self):
        return self.q.dequantise()

    def section_bytes(self):
        return quantised_bytes(self.q.histograms(), self.q.bits, self.q.count)

    def row(self, i):
        return self.q.row(i)


@dataclass(frozen=True)
class Bits:
    bits: Literal[32, 16, 8, 6, 4, 3, 2] = 32

    @property
    def exact(self):
        return self.bits == 32

    def round_rows(self, rows, key, clients):
        if self.bits >= 16:
            return F(rows if self.bits == 32 else round_to_bfloat16(rows, key, clients), self.bits)
        return Q(quantise_rows(rows, self.bits, key, clients))

    def fixed_bytes(self, count):
        return count * self.bits // 8 if self.bits >= 16 else None

    def reads(self, format):
        return {32: format == 1, 16: format == 3}.get(self.bits, format & 15 == self.bits)

    def most_bytes(self, count):
        return 8 * count + 4096

    def bits_per_number(self):
        return 1.0


QUANTISERS = {"bits": Bits}
