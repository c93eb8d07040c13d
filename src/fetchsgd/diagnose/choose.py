"""From the settings of a run to its diagnosis."""

from __future__ import annotations

from typing import Any, cast

from fetchsgd.diagnose.method import Diagnosed
from fetchsgd.methods import Method
from fetchsgd.methods.base import WithServerError

EXACT_UP_TO = 1 << 24  # weights; beside FetchSGD some ten vectors of that length are kept


def diagnosed(method: Method, config: Any) -> Diagnosed | None:
    """The method with `train.diagnose`, and None without."""
    train = config.train
    if not train.diagnose:
        return None
    watched = cast(WithServerError, method)  # the settings refuse all others
    # Clients that round what they send are compressed one by one, and a single local step is scaled
    # by the rate only after it is compressed.
    sees_mean = config.quantiser.exact and not config.local.is_one_step
    exact = sees_mean and max(method.dim, method.message.numbers) <= EXACT_UP_TO
    return Diagnosed(watched, train.diagnose_every, train.diagnose_window, exact)
