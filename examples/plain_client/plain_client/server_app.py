"""The server: fetchsgd's own."""

from fetchsgd.flower.server import app

__all__ = ["app"]
