"""Simulated federations.

cohort.py does a cohort's work on one device, run.py a whole run; sweep.py plans many runs from one
file, and sweep_jobs.py runs them.
"""

from fetchsgd.simulation.run import Run

__all__ = ["Run"]
