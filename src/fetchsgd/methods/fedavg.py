"""FedAvg (McMahan et al. 2017): clients take many steps on their own data and send the difference.

The steps themselves are the settings under [local]; they serve every other method as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fetchsgd.methods.uncompressed import Uncompressed


@dataclass(frozen=True)
class FedAvg(Uncompressed):
    """The mean difference is the update, with global momentum if asked (rho_g of section 5).

    >>> FedAvg(dim=1000, momentum=0.5).needs_local_steps
    True
    """

    momentum: float = 0.0

    needs_local_steps: ClassVar[bool] = True
