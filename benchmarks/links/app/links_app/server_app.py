"""The server's half."""

from fetchsgd.flower.server import app

__all__ = ["app"]
