"""Heavy shares and contraction: of vectors, or estimated from sketches. Nothing waits for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float32
from torch import Tensor

from fetchsgd.sketch import CountSketch, Table
from fetchsgd.vector import SparseVector

Scalar = Float32[Tensor, ""]


class Space(Protocol):
    """Where q^t and sums of gradients live. A share of nothing is NaN."""

    def heaviest_share(self, x: Tensor, found: SparseVector | None = None) -> Scalar:
        """max_i x_i^2 / |x|^2; `found` are the largest estimates where these are known already."""
        ...

    def contraction(self, q: Tensor, found: SparseVector) -> Scalar:
        """|q - found|^2 / |q|^2."""
        ...


def energy(x: Tensor) -> Scalar:
    """|x|^2; of a table that of all its rows together."""
    return x.square().sum()


@dataclass(frozen=True)
class Dense:
    """Vectors as they are."""

    def heaviest_share(
        self, x: Float32[Tensor, " dim"], found: SparseVector | None = None
    ) -> Scalar:
        del found  # estimates are no use where the truth is known
        return x.abs().amax().square() / energy(x)

    def contraction(self, q: Float32[Tensor, " dim"], found: SparseVector) -> Scalar:
        return energy(q.index_add(0, found.indices, found.values, alpha=-1)) / energy(q)


@dataclass(frozen=True)
class Sketched:
    """The same for x of which there is only S(x)."""

    sketch: CountSketch

    def heaviest_share(self, x: Table, found: SparseVector | None = None) -> Scalar:
        """With one row estimates are the cells and their negatives; else all are walked over."""
        if found is not None and len(found):
            estimates = found.values
        else:
            estimates = x if self.sketch.rows == 1 else self.sketch.estimate(x)
        return estimates.abs().amax().square() / self._energy(x)

    def contraction(self, q: Table, found: SparseVector) -> Scalar:
        """In the sketch, as the proof of theorem 1 has it, where there are several rows.

        With one row S(q - found) says little: the coordinates of a cell are all found or none, with
        signs that add up in the cell. But then <q, found> is the energy of their cells, for over
        the coordinates of a cell x the sum of q_i found_i is x times the signed sum of q_i.
        """
        if self.sketch.rows > 1:
            return self._energy(q - self.sketch.sketch(found)) / self._energy(q)
        product = energy(q.where(self.sketch.touched(found), q.new_zeros(())))
        return 1 + (energy(found.values) - 2 * product) / energy(q)

    def _energy(self, table: Table) -> Scalar:
        """An estimate of |x|^2: the median over rows."""
        return table.square().sum(dim=1).quantile(0.5)
