"""`python -m fetchsgd` is `fetchsgd`."""

from fetchsgd.cli import main

main()
