"""What each setting means and may be: the one source of `fetchsgd settings`, docs/settings.md and
the comments in config.toml.

Types, choices and defaults are not here: they are those of the dataclasses. A part of the user's
own says what its options mean in the docstring of its class, as `option: meaning`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Meaning(NamedTuple):
    """A sentence without its full stop, and the range of a number.

    high: a text where it follows from something else. above, below: the ends themselves are not
        allowed. A range counts where the setting has an effect.
    """

    text: str
    low: float | None = None
    high: float | str | None = None
    above: bool = False
    below: bool = False

    @property
    def range(self) -> str:
        """As in "above 0" or "from 1 to the model's weights"; empty if there is none."""
        if self.low is not None and self.high is not None and not self.above and not self.below:
            return f"from {_end(self.low)} to {_end(self.high)}"
        parts = []
        if self.low is not None:
            parts.append(f"{'above' if self.above else 'at least'} {_end(self.low)}")
        if self.high is not None:
            parts.append(f"{'below' if self.below else 'at most'} {_end(self.high)}")
        return " and ".join(parts)


def _end(end: float | str) -> str:
    """Powers of two as such, where their digits say nothing."""
    if isinstance(end, str):
        return end
    if end > 0 and not 0.01 < end < 1024 and math.log2(end).is_integer():
        return f"2^{math.log2(end):g}"
    return f"{end:,.0f}" if end >= 1024 else f"{end:g}"


WEIGHTS = "the number of weights"
CAP = "the most bytes that a message may take, its header included; 0 is no cap"
FOLDER = "where the data is; empty looks in FETCHSGD_DATA or ~/.cache/fetchsgd"

MEANINGS: dict[str, Meaning] = {
    "task.name": Meaning("which data and model: one of ours, or package.module:function"),
    "task.examples_per_client": Meaning(
        "images that a client holds; their mean with sizes = 'power_law'", 1, "what the task has"
    ),
    "task.split": Meaning(
        "what a client holds: images of one class ('one_class'), of all ('iid'), or a mixture "
        "('dirichlet')"
    ),
    "task.alpha": Meaning("how even the mixtures of split = 'dirichlet' are", 0, above=True),
    "task.sizes": Meaning("whether clients hold the same number of images, or a 'power_law'"),
    "task.exponent": Meaning(
        "of the power law of sizes = 'power_law'; larger is more even", 0, above=True
    ),
    "task.hidden": Meaning("units of the one hidden layer; 0 is a network of convolutions", 0),
    "task.channels": Meaning("of a small network's first convolution; 0 is the task's ResNet", 0),
    "task.folder": Meaning(FOLDER),
    "task.model": Meaning("a model's name on the hub, a folder, or a .gguf file"),
    "task.length": Meaning("the most tokens of a sequence", 8),
    "task.candidates": Meaning("replies among which the model learns to choose", 1),
    "task.permutations": Meaning(
        "how often each dialogue is seen, with its personality in another order each time", 1
    ),
    "task.exchanges": Meaning("how much of a dialogue is remembered", 0),
    "task.lm_coefficient": Meaning("weight of the language model's loss against the choice's"),
    "task.personality": Meaning(
        "two with the same 'sentences' are one client; or with the same 'listing' of them, in the "
        "same order, as in the paper"
    ),
    "task.lora_rank": Meaning("rank of the adapters; 0 trains all weights instead", 0),
    "task.lora_alpha": Meaning("how strong adapters are, times their rank; 0 is twice the rank", 0),
    "task.lora_targets": Meaning("layers that get adapters: 'all-linear', or names with commas"),
    "task.test_dialogues": Meaning("dialogues of the test set that are used; 0 is all", 0),
    "task.workers": Meaning("so many clients, to whom all roles are dealt; 0: each role is one", 0),
    "task.width": Meaning("of the network, a multiple of 4", 4),
    "task.layers": Meaning("of the network", 1),
    "task.sequences_per_client": Meaning(
        "the most of a role that is used, of 80 characters each; 0 is everything, else at least 2",
        0,
    ),
    "method.name": Meaning("what clients send and the server does with it"),
    "method.k": Meaning(
        "coordinates that are sent in a round; 0 sends all that moves, for fetchsgd with fresh "
        "hashes alone",
        0,
        WEIGHTS,
    ),
    "method.cols": Meaning("columns of the sketch: what a client sends is rows x cols numbers", 1),
    "method.rows": Meaning("rows of the sketch", 1),
    "method.momentum": Meaning("the server's momentum, rho of the paper", 0, 1),
    "method.nesterov": Meaning(
        "Nesterov's momentum on the server: steps along the momentum as the next round will have "
        "it (hash = 'fresh')"
    ),
    "method.chunk": Meaning("neighbours among which the largest are chosen", 1),
    "method.per_chunk": Meaning("coordinates of each chunk that are sent", 1, "method.chunk"),
    "method.error_decay": Meaning("what a client keeps of its error from round to round", 0, 1),
    "method.mask_momentum": Meaning(
        "whether what is sent is also cleared from the momentum; not where k = 0"
    ),
    "method.error_reset": Meaning(
        "what line 14 does to the cells of what is sent: 'zero' clears them, as in the paper's "
        "experiments; 'subtract' is the line as printed (hash = 'fixed')"
    ),
    "method.lr_position": Meaning(
        "the learning rate in front of the momentum ('inside', line 12), or at the update "
        "(hash = 'fixed')"
    ),
    "method.block": Meaning("neighbours that are hashed together; 0 chooses", 0),
    "method.sketch_seed": Meaning("from which the hash follows", 0, "2^64 - 1"),
    "method.error": Meaning(
        "what was not sent is summed up for ever ('vanilla') or over a sliding 'window', as in "
        "Theorem 2 (hash = 'fixed')"
    ),
    "method.window": Meaning("rounds that the sliding window covers; 0 without one", 0),
    "method.window_form": Meaning("a sketch for each round, or a 'histogram' of fewer"),
    "method.window_eps": Meaning("how exact the histogram is", 0, 1, above=True, below=True),
    "method.recovery": Meaning(
        "what is sent: the k largest, or those above a 'threshold' (hash = 'fixed')"
    ),
    "method.tau": Meaning(
        "the threshold of recovery = 'threshold', as a part of the error's norm; else 0", 0, 1
    ),
    "method.hash": Meaning("a 'fresh' hash in every round, or one for the whole run, the paper's"),
    "method.decode": Meaning(
        "how a sketch with a fresh hash is read: with a 'prior', 'unbiased', or 'auto', a prior "
        "where there is one row"
    ),
    "method.noise_limit": Meaning(
        "what is decoded is at most this many times as long as the gradient (hash = 'fresh')",
        1,
        1e6,
    ),
    "method.revisit": Meaning(
        "what was sent lately counts this many times as much when the largest are chosen; 2 makes "
        "downloads smaller",
        1,
        1e6,
    ),
    "method.revisit_rounds": Meaning("rounds for which what was sent counts more", 1, 2**30),
    "method.state_bits": Meaning(
        "bits of each number that a server with fresh hashes carries from round to round"
    ),
    "method.local_error": Meaning("whether clients keep what they have not sent"),
    "method.local_momentum": Meaning("momentum that clients keep", 0, 1),
    "train.epochs": Meaning("how often the clients' data is gone through", 0, above=True),
    "train.baseline_epochs": Meaning(
        "epochs of the uncompressed run to which compression is relative, and in which the "
        "schedule is written; 0 is the same as epochs",
        0,
    ),
    "train.clients_per_round": Meaning(
        "clients that take part in a round", 1, "the task's clients"
    ),
    "train.sampling": Meaning(
        "who takes part: each once in an 'epoch', a 'uniform' draw in each round, 'poisson', "
        "each by a coin of its own, or few workers who 'stay' and take part in every round"
    ),
    "train.leaving": Meaning(
        "of those that stay, so many leave for good from time to time, and new ones join",
        0,
        "train.clients_per_round",
    ),
    "train.leave_every": Meaning("rounds after which some of those that stay leave", 0),
    "train.averaging": Meaning("whether clients count the same, or by their 'examples'"),
    "train.weight_decay": Meaning(
        "so many times the weights are added to gradients; beside them with AdamW", 0
    ),
    "train.weight_decay_by": Meaning(
        "who adds weight decay; 'auto' is the server where that makes messages shorter"
    ),
    "train.seed": Meaning("from which everything random follows", 0, "2^63 - 1"),
    "train.device": Meaning("'cpu', 'cuda', 'cuda:1', or 'auto', a GPU where there is one"),
    "train.dtype": Meaning("in which passes compute; 'auto' is bfloat16 on a GPU"),
    "train.cuda_graphs": Meaning(
        "whether passes are recorded on a GPU; off if the model decides by its data what to do"
    ),
    "train.average": Meaning(
        "the model is the mean of all rounds' weights, each counting so many times the next; 0 is "
        "the last round's",
        0,
        1,
        below=True,
    ),
    "train.eval_every": Meaning("epochs from one evaluation to the next", 0, above=True),
    "train.checkpoint_every": Meaning("rounds between checkpoints; 0 is only at the end", 0),
    "train.diagnose": Meaning("whether to look if the theorems' assumptions hold"),
    "train.diagnose_every": Meaning("rounds from one diagnosis to the next", 1),
    "train.diagnose_window": Meaning("the most gradients that a diagnosis sums up", 1),
    "schedule.kind": Meaning(
        "triangular: from 0 to peak at pivot, and back to 0 at the end; linear: from peak to 0; "
        "constant; piecewise: straight lines between points"
    ),
    "schedule.peak": Meaning("the largest learning rate", 0),
    "schedule.pivot": Meaning("the epoch of the peak, if triangular", 0, "train.baseline_epochs"),
    "schedule.points": Meaning("pairs [epoch, rate], if piecewise"),
    "local.epochs": Meaning(
        "passes that a client makes over its data before it sends the difference; 0 sends one "
        "gradient, if there are no local.steps",
        0,
    ),
    "local.steps": Meaning(
        "so many local steps instead of whole passes; the client goes round its data; 0: passes", 0
    ),
    "local.optimizer": Meaning("of local steps: torch.optim's SGD or AdamW"),
    "local.momentum": Meaning("of local steps by SGD", 0, 1, below=True),
    "local.beta1": Meaning("of AdamW", 0, 1, below=True),
    "local.beta2": Meaning("of AdamW", 0, 1, below=True),
    "local.eps": Meaning("of AdamW", 0, above=True),
    "local.state": Meaning(
        "whether a client's optimiser is kept from round to round, or starts afresh in each"
    ),
    "local.outer_rate": Meaning(
        "the server's learning rate with local steps, whose mean difference is its gradient; the "
        "schedule is that of the local steps",
        0,
        above=True,
    ),
    "local.batch_size": Meaning(
        "examples of a local step; 0 takes all of a client's data in one step", 0
    ),
    "local.lr_decay": Meaning(
        "factor on the learning rate from each local step to the next", 0, 1, above=True
    ),
    "local.clip": Meaning("the longest gradient that a client sends or steps along; 0: any", 0),
    "upload.quantiser": Meaning("how the numbers that a client sends are rounded"),
    "upload.bits": Meaning("bits of a number: 32 is float32, 16 bfloat16, fewer are levels"),
    "upload.tau": Meaning(
        "the step over the root mean square of the message's numbers", 2**-10, 2**20
    ),
    "upload.bytes": Meaning(CAP, 0),
    "upload.density": Meaning(
        "the mean magnitude of a level over all clients; smaller is shorter", 2**-16, 100
    ),
    "upload.rate": Meaning("bits of a number: 1, 2, 3, 4, or less than 1", 1 / 4096, 4),
    "upload.sum": Meaning(
        "what the server sees: each message ('plain'), or sums modulo 2^b alone ('modular')"
    ),
    "upload.sum_bits": Meaning("b, the bits of a cell of a sum", 4, 16),
    "upload.wrap_probability": Meaning(
        "how likely a cell of a sum may be too large for b bits; steps are as fine as this allows",
        1e-12,
        0.1,
    ),
    "upload.sum_step": Meaning("the step of all rounds; 0 learns it from the sums", 0),
    "upload.first_step": Meaning(
        "the step of the first round, where learning begins", 0, above=True
    ),
    "upload.sum_clip": Meaning(
        "the most that a client may add to a cell, as a part of what a sum can hold; 0 takes 2 "
        "over the root of the number of clients",
        0,
        1,
    ),
    "upload.secure": Meaning(
        "sum by secure aggregation in a federation; a simulation counts its keys and shares"
    ),
    "upload.colluding": Meaning(
        "the part of a cohort that may work with the server against the others", 0, 0.5, below=True
    ),
    "upload.dropping": Meaning(
        "the part of a cohort that may drop out of a round without ending it", 0, 0.5, below=True
    ),
    "upload.security_bits": Meaning(
        "s: those who collude learn more than the sum with a probability of 2^-s a round", 1, 128
    ),
    "download.grid": Meaning(
        "which values weights may take, and so what changes cost; by default 'steps' for fetchsgd "
        "with fresh hashes"
    ),
    "download.step": Meaning(
        "size of a step, as a part of the standard deviation of a tensor's first weights",
        0,
        above=True,
    ),
    "download.log": Meaning(
        "rounds after which a client that was away fetches all weights instead of steps", 1
    ),
    "download.coarse": Meaning(
        "whether changes are multiples of as many steps as the smallest allows: fewer bits"
    ),
    "download.by_size": Meaning(
        "whether large tensors have larger steps and small ones finer, by the root of their number "
        "of weights"
    ),
    "privacy.mode": Meaning(
        "differential privacy for whole clients: 'central', noise by a server that is trusted, or "
        "'distributed', noise by the clients in whole levels"
    ),
    "privacy.clip": Meaning(
        "the longest message that a client sends; that of the first round where it moves",
        0,
        above=True,
    ),
    "privacy.quantile": Meaning(
        "the share of clients whose messages are to be within the clip, which follows them; 0: it "
        "stays where it is",
        0,
        1,
        below=True,
    ),
    "privacy.clip_rate": Meaning("how fast the clip follows its quantile", 0, above=True),
    "privacy.clip_noise": Meaning(
        "the deviation of the noise on how many clients are within the clip; 0 is a twentieth of a "
        "cohort, or the noise if that is more",
        0,
    ),
    "privacy.noise": Meaning(
        "the deviation of the noise in the sum, over the clip; 0 is what epsilon asks for", 0
    ),
    "privacy.epsilon": Meaning(
        "of the whole run, which decides on the noise; where that is given, a budget at which the "
        "run ends; 0: none",
        0,
    ),
    "privacy.delta": Meaning(
        "the probability beside epsilon, well below one over the clients",
        0,
        1,
        above=True,
        below=True,
    ),
    "privacy.mechanism": Meaning("of distributed noise; a server's is 'gaussian'"),
    "privacy.accountant": Meaning(
        "'pld', the tightest, which needs the extra privacy, or 'rdp', which does not"
    ),
    "privacy.random": Meaning(
        "noise from a 'secret' key, or from the 'seed', for experiments on public data"
    ),
    "merge.name": Meaning("how replies become one update; all but 'mean' bound what liars can do"),
    "merge.groups": Meaning(
        "replies are summed in so many groups, which the rule merges; with fewer clients each is a "
        "group",
        3,
        4096,
    ),
    "merge.clip": Meaning(
        "longer replies than so many times the running median norm are scaled down to that; 0: "
        "none is, else at least 0.1",
        0,
    ),
    "merge.liars": Meaning(
        "the share of groups that may hold a liar: so many are dropped",
        0,
        0.5,
        above=True,
        below=True,
    ),
    "merge.odds": Meaning(
        "so many to one a lie must be before a client is left out", 1, 1e9, above=True
    ),
    "attack.name": Meaning("what liars among simulated clients send"),
    "attack.share": Meaning("of the clients that lie", 0, 1, above=True, below=True),
    "attack.seed": Meaning("from which follows who lies", 0, "2^63 - 1"),
    "attack.after": Meaning("rounds in which liars are still honest", 0),
    "attack.apart": Meaning(
        "noise that hides their agreement, over the length of what they send", 0
    ),
    "attack.factor": Meaning("so many times their own vector"),
    "attack.deviations": Meaning(
        "so many below the mean; 0 takes as many as hide the liars behind some honest clients"
    ),
    "attack.claimed": Meaning("so many times the examples that they have"),
}


def meaning_of(section: str, key: str, owner: Callable[..., Any] | None = None) -> Meaning:
    """Of a setting; `owner` is the class or function that has it as an option, if one has."""
    told = None if owner is None or _is_ours(owner) else _told(owner, key)
    return told or MEANINGS.get(f"{section}.{key}", Meaning(""))


def _is_ours(owner: Callable[..., Any]) -> bool:
    return owner.__module__.startswith("fetchsgd.")


def _told(owner: Callable[..., Any], key: str) -> Meaning | None:
    """What a docstring says in a line `key: meaning`, and in those below that go on with it."""
    found = re.search(
        rf"^[ \t]*{re.escape(key)}:[ \t]+(.+(?:\n[ \t]+(?!\w+:)\S.*)*)", owner.__doc__ or "", re.M
    )
    return None if found is None else Meaning(" ".join(found[1].split()).removesuffix("."))
