"""Simulated federations: cohort.py does a cohort's work on one device, run.py a whole run."""

from fetchsgd.simulate.run import Run

__all__ = ["Run"]
