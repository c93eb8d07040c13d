"""From the settings of a run to its diagnosis."""

from __future__ import annotations

from typing import Any, cast

from fetchsgd.diagnose.method import Diagnosed
from fetchsgd.methods import FetchSGD, Method
from fetchsgd.methods.base import WithServerError

EXACT_UP_TO = 1 << 24  # weights; beside FetchSGD some ten vectors of that length are kept


def diagnosed(method: Method, config: Any) -> Diagnosed | None:
    """The method with `train.diagnose`, and None without."""
    train = config.train
    if not train.diagnose:
        return None
    watched = cast(WithServerError, method)  # the settings refuse all others
    # Clients that round what they send are compressed one by one, which fresh hashes allow for, and
    # a single local step is scaled by the rate only after it is compressed.
    is_fresh = isinstance(method, FetchSGD) and method.is_fresh
    sees_mean = (config.quantiser.exact or is_fresh) and not config.local.is_one_step
    exact = sees_mean and (is_fresh or max(method.dim, method.message.numbers) <= EXACT_UP_TO)
    return Diagnosed(watched, train.diagnose_every, train.diagnose_window, exact)
