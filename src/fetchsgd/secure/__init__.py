"""Secure aggregation: the server learns the sum of the clients' vectors, and nothing else of them.

After Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead"
(SecAgg+), as pure state machines whose messages are bytes: `Client` and `Server` know no network.
docs/privacy.md says what is protected against whom, docs/secure.md has the messages byte by byte.

What only counts, such as `parameters` and `protocol_bytes`, needs no package for keys: the rest is
imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fetchsgd.secure.errors import RefusedError, TooFewError
from fetchsgd.secure.parameters import Parameters, Risks, parameters, risks
from fetchsgd.secure.secret import Secret
from fetchsgd.secure.sizes import PhaseBytes, protocol_bytes
from fetchsgd.secure.terms import Policy, Terms, make_terms

if TYPE_CHECKING:
    from fetchsgd.secure.client import Client
    from fetchsgd.secure.journal import Journal
    from fetchsgd.secure.server import Phase, Server, Sum
    from fetchsgd.secure.state import ClientState

_HOME_OF = {
    "Client": "client",
    "ClientState": "state",
    "Journal": "journal",
    "Phase": "server",
    "Server": "server",
    "Sum": "server",
}

__all__ = [
    "Client",
    "ClientState",
    "Journal",
    "Parameters",
    "Phase",
    "PhaseBytes",
    "Policy",
    "RefusedError",
    "Risks",
    "Secret",
    "Server",
    "Sum",
    "Terms",
    "TooFewError",
    "make_terms",
    "parameters",
    "protocol_bytes",
    "risks",
]


def __getattr__(name: str) -> Any:
    """What makes keys, on first use."""
    if name in _HOME_OF:
        home = import_module(f"fetchsgd.secure.{_HOME_OF[name]}")
        found = globals()[name] = getattr(home, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
