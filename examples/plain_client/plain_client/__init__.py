"""Clients of a federation in plain Python, from docs/protocol.md, wire.md and hash.md alone."""
