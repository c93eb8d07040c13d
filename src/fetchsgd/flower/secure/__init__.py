"""Secure aggregation in a federation on Flower: rounds.py on the server, take_part.py on clients.

The protocol itself is fetchsgd.secure.
"""
