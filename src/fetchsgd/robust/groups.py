"""Which group a client is in: the server keeps one sum for each group, and no single message.

Groups are drawn anew in each round from the run's seed, so that nobody has the same company twice.
Who knows the seed knows the groups: liars may know them, and promises count every group that holds
a liar as lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchsgd.randomness import numpy_generator


class Groups:
    """The groups of a round. `cohort`: who is asked first, dealt out evenly; others by a draw.

    A cohort of no more clients than groups has a group for each.
    """

    def __init__(self, seed: int, round: int, cohort: Sequence[int], most: int) -> None:
        self.seed, self.round, self.most = seed, round, most
        order = numpy_generator(seed, "group", round).permutation(len(cohort))
        self.place = {cohort[i]: place for place, i in enumerate(order.tolist())}

    def of(self, client: int) -> int:
        """A spare takes the next place, which depends on the order in which spares come."""
        place = self.place.setdefault(client, len(self.place))
        return place % self.most
