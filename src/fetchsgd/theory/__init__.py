"""What the paper's theorems ask for: sketch sizes, steps, bounds, and what a given table promises.

medians.py has the chance that a median of rows is off, tables.py the tables that follow,
contraction.py what top-k then removes, convergence.py steps and bounds, costs.py bytes, and
answers.py puts them together for `fetchsgd theory`.

The theorems are about line 14 of Algorithm 1 as printed (`error_reset = "subtract"`), and the
second about sliding windows without momentum. Where the paper is not consistent we take this:

- Heavy means q_i^2 >= tau |q|^2 in Assumption 1, but |q_i| > tau |q| in Definition 1 (Scenario 2),
  which appendix B calls the same. Sizes grow as 1/tau in Theorem 1 and as 1/tau^2 in Theorem 2.
- Assumption 1 speaks of the errors that there would be without sketching, the proof uses those with
  it. We take the latter.
- The proof of Theorem 1 also wants norms within 1 +- tau, for which its O(1/tau) cells are too few:
  that takes O(1/tau^2) (appendix C). A bound on |e| itself needs no norm of a sketch; `theorem_1`
  gives both bounds.
- All promises are for vectors chosen without knowledge of the hash. Rounds that share a hash are
  not: earlier updates depend on it. The union bound over rounds in appendix B ignores that.
"""

from fetchsgd.theory.answers import Promise, Requirement, promise, requirements
from fetchsgd.theory.contraction import Contraction, contracting
from fetchsgd.theory.convergence import Convergence, Problem, theorem_1, theorem_2
from fetchsgd.theory.costs import Costs, Windows, costs, windows
from fetchsgd.theory.fresh import (
    FreshRate,
    collision_noise,
    fresh_rate,
    grid_rate,
    largest_grid_step,
    largest_step,
)
from fetchsgd.theory.tables import (
    Certainty,
    Heaviness,
    TableSize,
    hoeffding_table,
    norm_table,
    promised,
    risk,
    smallest_table,
)

__all__ = [
    "Certainty",
    "Contraction",
    "Convergence",
    "Costs",
    "FreshRate",
    "Heaviness",
    "Problem",
    "Promise",
    "Requirement",
    "TableSize",
    "Windows",
    "collision_noise",
    "contracting",
    "costs",
    "fresh_rate",
    "grid_rate",
    "hoeffding_table",
    "largest_grid_step",
    "largest_step",
    "norm_table",
    "promise",
    "promised",
    "requirements",
    "risk",
    "smallest_table",
    "theorem_1",
    "theorem_2",
    "windows",
]
