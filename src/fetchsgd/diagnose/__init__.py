"""Whether the theorems' assumptions hold along a run, measured while it trains (section 4).

`Diagnosed` stands in a method's place, does exactly what the method does, and looks on:

heaviest_share     max_i q_i^2 / |q|^2 of q^t = eta (rho u + g) + e: Assumption 1's tau
contraction        |q - C(q)|^2 / |q|^2 for C = Top-k(U(S(.))); theorem 1 wants 1 - tau at most
error_left         |e'|^2 / |q|^2 of the error e' that goes into the next round, which is what the
                   proof of theorem 1 bounds; with `error_reset = "subtract"` it is the contraction
                   in the sketch, but "zero" clears cells where C alone would not contract
sliding_share      the largest max_j s_j^2 / |s|^2 of sums s of the last 1, 2, 4, ..., I gradients:
                   tau of Definition 1 as appendix B writes it, in squares
masked_share       the share of |u|^2 that momentum factor masking has cleared
estimation_error   U(S(g))_i - g_i over a sample of coordinates, root mean square, over |g|;
                   with one row at most 1 / sqrt(cols) is to be expected

With fresh hashes, where each round is decoded anew (fetchsgd.methods.decoding), also

decoding_error     |x - g|^2 / |g|^2 of what is decoded, x, and the clients' mean gradient, g; and
                   decoding_error_predicted, from dim / cols or the variances, and from steps
decoded_length     |x| / |g|, which `noise_limit` bounds; and decoded_along, <x, g> / |g|^2
horizon            the logarithm of n, the rounds over which the decoder takes noise to average out
rounding_share     how much of decoding_error is rounding, where clients round what they send; and
                   rounding_share_predicted, where they round to multiples of a step

and no sums of gradients, since x is mostly noise, nor estimation_error. noise.py has the formulas.

Masks and resets are seen where they happen, in the sketch. The others are about vectors, and exact
where there are any: for true top-k, with fresh hashes, and for the paper's FetchSGD up to
EXACT_UP_TO weights, beside which we carry dense u and e (shadow.py). Else they are estimated from
tables (spaces.py). Know that

- of a vector without heavy coordinates the largest estimate still has a share of 2 ln(cols) / cols;
- cells are cleared by how much they hold, so what cancels in its cell stays in e forever, unseen
  by the sketch: with `error_reset = "zero"` the exact |q| outgrows the one that tables show;
- with one row C is no contraction, since a cell's coordinates all get the whole cell;
- with sliding windows there is no single q^t, and what is about it is left out.
"""

from fetchsgd.diagnose.choose import EXACT_UP_TO, diagnosed
from fetchsgd.diagnose.method import Diagnosed
from fetchsgd.diagnose.notebook import QUANTITIES

__all__ = ["EXACT_UP_TO", "QUANTITIES", "Diagnosed", "diagnosed"]
