"""The clients' half."""

from fetchsgd.flower.client import app

__all__ = ["app"]
