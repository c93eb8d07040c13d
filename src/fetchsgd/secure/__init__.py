"""Secure aggregation: the server learns the sum of the clients' vectors, and nothing else of them.

After Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead"
(SecAgg+), as pure state machines whose messages are bytes: `Client` and `Server` know no network.
docs/privacy.md says what is protected against whom, docs/secure.md has the messages byte by byte.
"""

from fetchsgd.secure.client import Client
from fetchsgd.secure.errors import RefusedError, TooFewError
from fetchsgd.secure.journal import Journal
from fetchsgd.secure.parameters import Parameters, Risks, parameters, risks
from fetchsgd.secure.secret import Secret
from fetchsgd.secure.server import Phase, Server, Sum
from fetchsgd.secure.sizes import PhaseBytes, protocol_bytes
from fetchsgd.secure.state import ClientState
from fetchsgd.secure.terms import Policy, Terms, make_terms

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
