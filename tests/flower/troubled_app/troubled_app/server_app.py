"""The server's half."""

from flower.watched import watch_server

from fetchsgd.flower.server import app

watch_server()

__all__ = ["app"]
