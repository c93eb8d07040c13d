"""Rules that merge the means of groups, of which some may hold liars.

A rule sees one row per group, each no longer than `clip` times the median row. Rules that count by
cell (median, trimmed) bound each cell; those that count by distance (nearest, filtered) look
at whole rows, and need nothing but their products with each other.

`liars` is the share of groups that may hold one: what is dropped, whether anybody lies or not. With
more than that, nothing is promised. `vetted` drops nobody without evidence, and remembers it.
Groups of several clients are lost by a single liar among them, so few groups of many withstand
fewer liars than a group for each client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.robust.record import Members, Record
from fetchsgd.robust.witnesses import confirmed, evidence

Rows = Float32[Tensor, "groups numbers"]
Row = Float32[Tensor, " numbers"]


class Rule(Protocol):
    """How the means of groups become one.

    groups: the most of them. clip: longer replies than this many times what is usual are scaled
    down to that; 0: none is.
    """

    @property
    def groups(self) -> int: ...

    @property
    def clip(self) -> float: ...

    def merge(self, rows: Rows) -> Row:
        """The means of groups, in the order of their numbers, as one."""
        ...


@dataclass(frozen=True)
class Mean:
    """What the paper does: all replies count as they say, and nothing is bounded."""

    is_plain: ClassVar[bool] = True


@dataclass(frozen=True)
class _Grouped:
    groups: int = 20
    clip: float = 1.0

    is_plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 3 <= self.groups <= 4096:
            raise UserError(
                f"merge.groups must be from 3 to 4096, got {self.groups}: of two groups nobody can "
                "tell which one is right"
            )
        if self.clip != 0 and not 0.1 <= self.clip < math.inf:
            raise UserError(
                f"merge.clip must be 0, which is none, or at least 0.1, got {self.clip}"
            )

    def merge(self, rows: Rows) -> Row:
        raise NotImplementedError


@dataclass(frozen=True)
class Clipped(_Grouped):
    """The mean of what is clipped to the running median of norms."""

    def merge(self, rows: Rows) -> Row:
        return rows.mean(0)


@dataclass(frozen=True)
class Median(_Grouped):
    """The median over groups, cell by cell; between the two middle ones of an even number."""

    def merge(self, rows: Rows) -> Row:
        return middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class _Dropping(_Grouped):
    liars: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.liars < 0.5:
            raise UserError(
                f"merge.liars must be above 0 and below 0.5, got {self.liars}: a majority of liars "
                "is right by any rule"
            )

    def dropped(self, groups: int) -> int:
        """How many of so many groups are left out; at least one is kept."""
        return min(math.ceil(self.liars * groups - 1e-9), (groups - 1) // 2)


@dataclass(frozen=True)
class Trimmed(_Dropping):
    """The mean over groups without the largest and the smallest, cell by cell."""

    def merge(self, rows: Rows) -> Row:
        return middle(rows, self.dropped(len(rows)))


@dataclass(frozen=True)
class Nearest(_Dropping):
    """Each row becomes the mean of those nearest to it, and of these the trimmed mean is taken.

    Allouah et al. 2023: a row that few are near to counts little, and heterogeneous rows are no
    longer far from one another.
    """

    def merge(self, rows: Rows) -> Row:
        dropped = self.dropped(len(rows))
        near = distances(rows).topk(len(rows) - dropped, dim=1, largest=False).indices
        shares = torch.zeros(len(rows), len(rows), device=rows.device)
        shares.scatter_(1, near, 1 / near.shape[1])
        return middle(shares @ rows, dropped)


@dataclass(frozen=True)
class Filtered(_Dropping):
    """The mean without the rows that stand out most along the direction in which rows differ most.

    Shejwalkar and Houmansadr 2021. Liars who want to move a mean must pull in one direction, and
    there they are found.
    """

    def merge(self, rows: Rows) -> Row:
        around = rows.double() - rows.double().mean(0)
        _, vectors = torch.linalg.eigh(around @ around.T)
        far = vectors[:, -1].square()
        kept = far.topk(len(rows) - self.dropped(len(rows)), largest=False).indices
        return rows[kept.sort().values].mean(0)


class Vetting(NamedTuple):
    """What a rule with a record makes of a round: the update, the record after it, who is out."""

    merged: Row
    record: Record
    left_out: int  # groups


@dataclass(frozen=True)
class Vetted(_Grouped):
    """The mean of those whom neither this round nor their record speaks against.

    witnesses.py says what a round is evidence of, record.py how rounds add up. odds: how much
    likelier than not a lie must be before a client is left out. Fewer than half are.
    """

    clip: float = 2.0
    odds: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.odds <= 1e9:
            raise UserError(
                f"merge.odds must be above 1, at most 1e9, got {self.odds}: so many to one a lie "
                "must be before a client is left out"
            )

    def merge(self, rows: Rows) -> Row:
        """By this round alone."""
        return self.vet(rows, [[place] for place in range(len(rows))], Record()).merged

    def vet(self, rows: Rows, members: Members, record: Record) -> Vetting:
        """By the record too. `members`: the clients of each row."""
        if len(rows) < 3:
            return Vetting(rows.mean(0), record, 0)
        sizes = torch.tensor([len(who) for who in members], dtype=torch.float64)
        found = confirmed(rows)
        says = evidence(found, sizes.to(rows.device))
        limit = math.log(self.odds)
        after, against = record.with_round(members, says, limit)
        most = (len(rows) - 1) // 2
        worst = torch.zeros_like(against, dtype=torch.bool)
        worst[against.topk(most).indices] = True
        share = found.share * ~(worst & (against > limit))
        merged = (share / share.sum()).float() @ rows
        return Vetting(merged, after, int((share == 0).sum()))


def middle(rows: Rows, dropped: int) -> Row:
    """Cell by cell, the mean without so many of the largest and of the smallest."""
    return rows.sort(dim=0).values[dropped : len(rows) - dropped].mean(0)


def distances(rows: Rows) -> Float32[Tensor, "groups groups"]:
    """Squared, of every two rows."""
    products = rows.double() @ rows.double().T
    squares = products.diag()
    return (squares[:, None] + squares - 2 * products).clamp(min=0).float()
