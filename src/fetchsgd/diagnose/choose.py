"""From the settings of a run to its diagnosis."""

from __future__ import annotations

from fetchsgd.diagnose.method import Diagnosed
from fetchsgd.methods import FetchSGD, Method, TrueTopK
from fetchsgd.runs.settings import Config

EXACT_UP_TO = 1 << 24  # weights; beside FetchSGD some ten vectors of that length are kept


def diagnosed(method: Method, config: Config) -> Diagnosed | None:
    """The method with `train.diagnose`, and None without."""
    train = config.train
    if not train.diagnose:
        return None
    assert isinstance(method, FetchSGD | TrueTopK), "resolve() has refused all others"
    # Clients that round what they send are compressed one by one, and a single local step is scaled
    # by the rate only after it is compressed.
    sees_mean = config.upload.bits == 32 and not config.local.is_one_step
    exact = sees_mean and max(method.dim, method.numbers_up) <= EXACT_UP_TO
    return Diagnosed(method, train.diagnose_every, train.diagnose_window, exact)
