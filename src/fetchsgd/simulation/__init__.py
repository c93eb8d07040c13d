"""Simulated federations.

cohort.py does a cohort's work, run.py a whole run, which prepare.py sets up from what a user asks
for; simulate.py is all of that as a function, result.py what it returns. Several processes may
share a cohort: spread.py, together.py. heap.py keeps memory from round to round. sweep.py plans
many runs from one file, and sweep_jobs.py runs them.
"""

from fetchsgd.simulation.result import Result, Traffic
from fetchsgd.simulation.run import Run
from fetchsgd.simulation.simulate import simulate

__all__ = ["Result", "Run", "Traffic", "simulate"]
