"""How numbers become few bits."""
