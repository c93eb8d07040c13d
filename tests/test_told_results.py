"""Figures that pages tell are those of the results: which settings when, what presets reached, what
privacy costs.
"""

from pathlib import Path
from statistics import fmean

import pytest

from fetchsgd.report.runs import find_runs

ROOT = Path(__file__).parents[1]
TODAY = "cifar10-frontier"


def mean_of(file, method, settings, kind):
    """Accuracy and compression, over the seeds of a setting."""
    found = [
        run
        for run in find_runs([ROOT / f"results/{file}.jsonl"])
        if run.method == method and all(run.settings.get(k) == v for k, v in settings.items())
    ]
    assert len({run.seed for run in found}) == len(found) > 0
    values = [run.value for run in found]
    ratios = [run.compression(kind, "wire") for run in found]
    return f"{100 * fmean(values):.1f} % at {fmean(ratios):.0f}x"


DIGITS, STEPS = "digits-frontier", {"download.step": 0.25, "upload.density": 0.01}
DENSE = {"method.revisit": 2.0, "upload.density": 0.03}
NO_K = {"method.k": 0, "method.nesterov": None, "train.average": None, "schedule.peak": 0.22}
SMALL_ROUNDS = (
    "cifar10-cohorts", "fetchsgd", {"method.cols": 325_000, "train.clients_per_round": 25}, "upload"
)  # fmt: skip
WHEN = [
    *((TODAY, "uncompressed", {"download.step": step, "upload.density": 0.018}, "upload")
      for step in (0.5, 1.0)),
    ("cifar100-frontier", "uncompressed",
     {"download.step": 0.5, "upload.density": 0.06}, "upload"),
    ("femnist-frontier", "uncompressed", {"upload.density": 0.01}, "upload"),
    *((TODAY, "true_topk", {"method.k": k, **DENSE}, "upload") for k in (20_000, 10_000, 5_000)),
    (TODAY, "true_topk", {"method.k": 20_000, **DENSE, "upload.density": 0.015}, "upload"),
    (TODAY, "fetchsgd",
     {"method.cols": 650_000, "method.k": 10_000, "method.noise_limit": 1.5}, "upload"),
    (TODAY, "fetchsgd",
     {"method.cols": 325_000, "method.k": 20_000, "method.decode": "auto", "schedule.peak": 0.6},
     "upload"),
    *((TODAY, "fetchsgd", {"method.cols": cols, **NO_K}, "upload") for cols in (650_000, 325_000)),
    SMALL_ROUNDS,
    *(("cifar10-sums", "fetchsgd",
       {"method.cols": cols, "method.k": 0, "upload.sum_bits": bits}, "upload")
      for cols, bits in ((650_000, 8), (340_000, 8), (650_000, 6))),
    *(("femnist-sums", "fetchsgd", {"upload.sum_bits": bits}, "upload") for bits in (8, 6)),
    *((DIGITS, "fetchsgd", {"method.cols": cols, "method.k": 0}, "upload")
      for cols in (8000, 4000, 2000, 1000)),
    (DIGITS, "true_topk", {"method.k": 500, **STEPS}, "upload"),
    (DIGITS, "true_topk", {"method.k": 250, **STEPS}, "upload"),
    (DIGITS, "true_topk", {"method.k": 125, **STEPS}, "upload"),
    *((DIGITS, "uncompressed", {"download.step": step, "upload.density": 0.01}, "upload")
      for step in (1.0, 2.0, 4.0)),
    *((DIGITS, "fetchsgd",
       {"method.cols": cols, "method.decode": "auto", "method.k": 500}, "upload")
      for cols in (8000, 4000, 2000, 1000)),
    *((DIGITS, "fetchsgd-paper", {"method.cols": cols}, "upload") for cols in (8000, 4000)),
]  # fmt: skip


@pytest.mark.parametrize("told", WHEN, ids=str)
def test_which_settings_when_is_what_was_measured(told):
    page = (ROOT / "docs/results.md").read_text()
    table = page.split("## Which settings when")[1].split("## What the paper says")[0]
    assert mean_of(*told) in table


def reached(file, method, settings):
    """The metric, and how much was compressed, over the seeds of a setting, as a table says it."""
    found = [
        run
        for run in find_runs([ROOT / f"results/{file}.jsonl"])
        if run.method == method and all(run.settings.get(k) == v for k, v in settings.items())
    ]
    assert len({run.seed for run in found}) == len(found) > 0
    value = fmean(run.value for run in found)
    ratios = (fmean(run.compression(kind, "wire") for run in found) for kind in KINDS)
    told = f"{100 * value:.1f} %" if found[0].higher_is_better else f"{value:.2f}"
    return told, *(f"{ratio:.3g}x" for ratio in ratios)


KINDS = ("upload", "overall")
FAST, PLAIN = {"schedule.peak": 0.003}, {"download.step": None}
MODULAR = {"upload.sum": "modular"}
FEW_CLIENTS = [
    ("femnist-frontier", "uncompressed", {"upload.density": 0.01}, "{} at {} up and {} overall"),
    ("femnist-frontier", "fetchsgd",
     {"method.mask_momentum": False, "method.cols": 5_000_000}, "{} at {} up"),
    ("femnist-sums", "fetchsgd", {"upload.sum_bits": 6}, "{} at {}"),
    ("femnist-standin", "fetchsgd-paper", {"method.k": 200_000, "method.cols": 5_000_000},
     "`paper`: {} at {} up"),
    ("femnist-standin", "uncompressed", {"train.epochs": 1.0}, "uncompressed: {}"),
    ("personachat-frontier", "uncompressed", FAST, "{} at {} up and {} overall"),
    ("personachat-frontier", "fetchsgd", {"method.cols": 12_400_000, **FAST, **PLAIN},
     "{} at {} up"),
    ("personachat-frontier", "fetchsgd", {"method.cols": 1_240_000, **FAST}, "{} at {}"),
    ("personachat-frontier", "fetchsgd", MODULAR, "{} at {} up and {} overall"),
    ("personachat-frontier", "fetchsgd-paper", {}, "`paper`: {} at {} up"),
    ("personachat-lora", "uncompressed", {"task.lora_rank": 0}, "uncompressed: {}"),
]  # fmt: skip


@pytest.mark.parametrize("told", FEW_CLIENTS, ids=str)
def test_few_clients_a_round_is_what_was_measured(told):
    page = (ROOT / "docs/results.md").read_text()
    table = page.split("With few clients a round and large models")[1].split("\n- ")[0]
    *where, words = told
    assert words.format(*reached(*where)) in table


FEW = {"method.revisit": 2.0, "upload.density": 0.03}
SMALL, TINY = ({"method.k": k, **FEW} for k in (20_000, 5_000))
REACHED = [
    (TODAY, "uncompressed", {"download.step": 0.5, "upload.density": 0.018}, "upload"),
    (TODAY, "true_topk", SMALL, "upload"),
    (TODAY, "true_topk", TINY, "upload"),
    (TODAY, "fetchsgd",
     {"method.cols": 650_000, "method.k": 10_000, "method.noise_limit": 1.5}, "upload"),
    (TODAY, "fetchsgd",
     {"method.cols": 325_000, "method.decode": "auto", "schedule.peak": 0.6, "method.k": 20_000},
     "upload"),
    (TODAY, "fetchsgd", {"method.cols": 325_000, **NO_K}, "upload"),
    SMALL_ROUNDS,
    *(("cifar10-sums", "fetchsgd",
       {"method.cols": cols, "method.k": 0, "upload.sum_bits": 8}, "upload")
      for cols in (650_000, 340_000)),
    ("cifar10-paper", "fetchsgd-paper", {"method.cols": 650_000, "method.k": 100_000}, "upload"),
    ("cifar10-paper", "fetchsgd-paper", {"method.cols": 325_000, "method.k": 100_000}, "upload"),
]  # fmt: skip


@pytest.mark.parametrize("told", REACHED, ids=str)
def test_what_presets_reached_is_what_was_measured(told):
    assert mean_of(*told) in (ROOT / "docs/fewer-bytes.md").read_text()


HALF = {"method.decode": "unbiased", "train.average": None}
WHOLE = {"download.step": 0.1}
PRIVATE = [
    ("femnist", 8.0, 16_000, 0.0, 0.2, {}, "| 8 | {} |"),
    ("femnist", 8.0, 8_000, 0.0, 0.2, {}, "| {}, no momentum | 50"),
    ("femnist", 3.0, 16_000, 0.0, 0.05, {}, "| 3 | {} |"),
    ("femnist", 3.0, 8_000, 0.5, 0.03, WHOLE, "| {}, momentum 0.5, whole steps |"),
    ("cifar10", 8.0, 8_000, 0.0, 0.4, {}, "no momentum | {} |"),
    ("cifar10", 8.0, 4_000, 0.75, 0.125, WHOLE, "| **{}**, momentum 0.75 |"),
    ("cifar10", 3.0, 8_000, 0.0, 0.4, {}, "whole steps | {} |"),
    ("cifar10", 3.0, 4_000, 0.5, 0.2, WHOLE, "| **{}**, momentum 0.5 |"),
    ("cifar10", 1.0, 8_000, 0.0, 0.2, {}, "| diverged | **{}** |"),
    ("cifar10", 1.0, 4_000, 0.5, 0.1, WHOLE, "| {}, momentum 0.5 |"),
]


@pytest.mark.parametrize("told", PRIVATE, ids=str)
def test_accuracy_over_epsilon_is_what_was_measured(told):
    """Over seeds 0 to 4; those above chose the rates."""
    task, epsilon, cols, momentum, peak, more, cell = told
    settings = {"privacy.epsilon": epsilon, "method.cols": cols, "method.momentum": momentum}
    settings |= {"schedule.peak": peak, "download.step": None, **HALF, **more}
    values = [
        run.value
        for run in find_runs([ROOT / f"results/{task}-private.jsonl"])
        if run.seed < 5 and all(run.settings.get(k) == v for k, v in settings.items())
    ]
    assert len(values) == 5
    assert cell.format(f"{100 * fmean(values):.1f} %") in (ROOT / "docs/privacy.md").read_text()


def test_what_a_smaller_k_costs_is_what_was_measured():
    runs = {run: [] for run in ("small", "tiny")}
    for run in find_runs([ROOT / f"results/{TODAY}.jsonl"]):
        for name, settings in (("small", SMALL), ("tiny", TINY)):
            if all(run.settings.get(key) == value for key, value in settings.items()):
                runs[name].append((run.value, run.compression("download", "wire")))
    (accuracy, ratio), (less, more) = (
        [fmean(column) for column in zip(*found, strict=True)] for found in runs.values()
    )
    told = f"shrank {more / ratio:.1f} times, accuracy by {100 * (accuracy - less):.1f} points"
    assert told in (ROOT / "docs/fewer-bytes.md").read_text()
