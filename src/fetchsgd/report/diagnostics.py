"""The diagnostics of a run (fetchsgd.diagnose): what each is called, and what it means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fetchsgd.report.runs import Run


@dataclass(frozen=True)
class Quantity:
    """The title of its figure, the title of its axis, and what it means."""

    title: str
    axis: str
    meaning: str


QUANTITIES = {
    "heaviest_share": Quantity(
        "Heaviest coordinate of q",
        "Share of |q|²",
        "The largest q_i² of what is unsketched, q = η(ρu + g) + e, over |q|². Theorem 1 assumes "
        "that it never falls below some τ.",
    ),
    "contraction": Quantity(
        "Contraction by top-k",
        "|q − C(q)|² over |q|²",
        "How much of q is left after C = Top-k(U(S(q))). Theorem 1 wants 1 − τ at most. Above 1, "
        "as with a single row, C is no contraction, and clearing cells must make up for it.",
    ),
    "error_left": Quantity(
        "Error left after a round",
        "|e|² over |q|²",
        "How much of q goes into the next round, measured where the method keeps it: with "
        "FetchSGD in the sketch.",
    ),
    "sliding_share": Quantity(
        "Heaviest coordinate of sums of gradients",
        "Share of the squared norm",
        "The largest share that one coordinate has in the sum of the last 1, 2, 4, ... gradients, "
        "up to train.diagnose_window. Theorem 2 assumes heavy coordinates there.",
    ),
    "masked_share": Quantity(
        "Momentum lost to masking",
        "Share of |u|²",
        "How much of the momentum is cleared together with what was sent.",
    ),
    "estimation_error": Quantity(
        "Error of estimates",
        "Root mean square over |g|",
        "How far estimates of the gradient are off, over a sample of coordinates. With one row "
        "1/√cols is to be expected.",
    ),
    "decoding_error": Quantity(
        "Noise of what is decoded",
        "|x − g|² over |g|²",
        "How far what a round's sketch says is from the clients' mean gradient. With fresh hashes "
        "it averages out over rounds.",
    ),
    "decoding_error_predicted": Quantity(
        "Noise of what is decoded, predicted",
        "|x − g|² over |g|²",
        "The same as theory has it: from collisions, d/c − 1 without a prior, and from rounding to "
        "steps.",
    ),
    "decoded_length": Quantity(
        "Length of what is decoded",
        "|x| over |g|",
        "How long what is decoded is. method.noise_limit is the most.",
    ),
    "decoded_along": Quantity(
        "What is decoded along the gradient",
        "⟨x, g⟩ over |g|²",
        "1 if nothing is lost on average; below 1 the decoder trades bias for less noise.",
    ),
    "horizon": Quantity(
        "Horizon of the decoder",
        "ln n",
        "Over how many rounds the decoder takes noise to average out, as a logarithm: 0 is the "
        "best guess for this round alone, and large is unbiased.",
    ),
    "rounding_share": Quantity(
        "Rounding's share of the noise",
        "Share of |x − g|²",
        "How much of the noise comes from clients' rounding; the rest is from collisions.",
    ),
    "rounding_share_predicted": Quantity(
        "Rounding's share of the noise, predicted",
        "Share of |x − g|²",
        "The same from the steps to which clients round.",
    ),
}


def measured_in(runs: Iterable[Run]) -> dict[str, Quantity]:
    """The quantities that were measured in at least one of the runs."""
    names = {name for run in runs for line in run.curve for name in line.diagnostics}
    return {name: quantity for name, quantity in QUANTITIES.items() if name in names}
