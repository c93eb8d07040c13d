"""Rounds of the paper's sizes on a GPU: what compression adds to them, and where the time goes.

    python benchmarks/paper_tasks.py --out benchmarks/results/paper-tasks-cuda.json

Data are random, in the shapes of CIFAR10, FEMNIST and PersonaChat; the networks are the tasks' own,
the language model one of SmolLM2-135M's shape with random weights. Rounds are timed by the clock,
launching included, in interleaved groups. `--profile FILE` writes a table of kernels for each task.
`--whole` instead times whole runs on CIFAR10 itself, evaluation and all, one after another: medians
of three.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment, report
from torch import Tensor, nn
from torch.autograd import DeviceType

from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.tasks import ClientData, Task, cifar
from fetchsgd.tasks.augment import crop_and_flip, warp_writing
from fetchsgd.tasks.base import cross_entropy, is_correct
from fetchsgd.tasks.femnist import PRESET as FEMNIST
from fetchsgd.tasks.language_models import DialogueModel
from fetchsgd.tasks.personachat import PRESET as CHAT
from fetchsgd.tasks.personachat import dialogue_loss, reply_losses
from fetchsgd.tasks.resnet9 import ResNet9
from fetchsgd.tasks.resnet101 import ResNet101

Row = dict[str, Any]
WORDS, WINDOW = 49_157, 40


def cifar_like(seed: int = 0) -> Task:
    """10,000 clients of 5 images."""
    model = partial(ResNet9, 10, cifar.CIFAR10.mean, cifar.CIFAR10.std)
    sizes = np.full(10_000, 5)
    return images("cifar_like", seed, (3, 32, 32), sizes, model, crop_and_flip,
                  cifar.preset(100, 0.3))  # fmt: skip


def femnist_like(seed: int = 0) -> Task:
    """500 writers of 227 characters on average, with the deviation that the paper reports."""
    sizes = np.random.default_rng(seed).normal(227, 89, 500).clip(20, 460).astype(np.int64)
    model = partial(ResNet101, 62)
    return images("femnist_like", seed, (1, 28, 28), sizes, model, warp_writing, FEMNIST)


def images(
    name: str,
    seed: int,
    shape: tuple[int, ...],
    sizes: np.ndarray[Any, Any],
    model: Callable[[], nn.Module],
    augment: Callable[[Tensor, torch.Generator], Tensor],
    preset: dict[str, dict[str, Any]],
) -> Task:
    generator = torch.Generator().manual_seed(seed)
    number = int(sizes.sum())
    inputs = torch.randint(256, (number, *shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (number,), generator=generator)
    data = ClientData(inputs, labels, np.concatenate([[0], np.cumsum(sizes)]))
    return Task(
        name=name, train=data, test_inputs=inputs[:2000], test_targets=labels[:2000], model=model,
        loss=cross_entropy, quality=is_correct, augment=augment, preset=preset,
    )  # fmt: skip


def chat_like(seed: int = 0) -> Task:
    """400 clients of 16 examples on average with 4 candidates, of 60 to 200 tokens."""
    random = np.random.default_rng(seed)
    sizes = random.integers(8, 25, 400)
    number = int(sizes.sum())
    lengths = random.integers(60, 201, number)
    inputs = torch.from_numpy(random.integers(0, WORDS - 1, (number, 4, 2, 200), dtype=np.int32))
    # Padding on the right, as in the task.
    inputs.masked_fill_(torch.arange(200) >= torch.from_numpy(lengths)[:, None, None, None],
                        WORDS - 1)  # fmt: skip
    counted = torch.from_numpy(random.integers(5, WINDOW, number))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    loss = partial(dialogue_loss, window=WINDOW, lm_coefficient=2.0)
    quality = partial(reply_losses, window=WINDOW)
    return Task(
        name="chat_like", train=ClientData(inputs, counted, offsets, lengths),
        test_inputs=inputs[:64], test_targets=counted[:64],
        model=small_language_model, loss=loss, quality=quality, preset=CHAT,
    )  # fmt: skip


def small_language_model() -> nn.Module:
    """Of SmolLM2-135M's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    return DialogueModel(LlamaForCausalLM(config), WORDS - 1, WINDOW)


def set_up(task: str, method: str, *settings: str) -> Run:
    # A rate so small that training on random data cannot diverge.
    fixed = ("device=cuda", "epochs=100", "sampling=uniform", "schedule.kind=constant",
             "schedule.peak=1e-6")  # fmt: skip
    given = {"task": {"name": f"paper_tasks:{task}"}, "method": {"name": method}}
    return Run(resolve(given, [*fixed, *settings]))


def milliseconds(
    each: Mapping[str, Iterator[object]], rounds: int, groups: int = 5
) -> dict[str, float]:
    """Of a round by the clock: medians over groups of rounds, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in each}
    for steps in each.values():
        clocked(steps, rounds)
    for _ in range(groups):
        for name, steps in each.items():
            taken[name].append(clocked(steps, rounds) / rounds * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def clocked(steps: Iterator[object], rounds: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        next(steps)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def against_uncompressed(
    task: str, rounds: int, table: list[str], ratio: float | None, share: float | None
) -> list[Row]:
    runs = {method: set_up(task, method) for method in ("fetchsgd", "uncompressed")}
    steps = {method: run.train(run.start()) for method, run in runs.items()}
    taken = milliseconds(steps, rounds)
    for method, iterator in steps.items():
        table += [f"\n{task}, {method}: {taken[method]:.2f} ms a round", *kernels(iterator)]
    return [
        {
            "what": f"{task}: FetchSGD / uncompressed round of {taken['uncompressed']:.2f} ms",
            "measured": f"{taken['fetchsgd']:.2f} ms",
            "ratio": taken["fetchsgd"] / taken["uncompressed"],
            "target": ratio,
        },
        compression_share(task, runs["fetchsgd"], taken["fetchsgd"]) | {"target": share},
    ]


def compression_share(task: str, run: Run, round: float) -> Row:
    """Sketch, merge and top-k by themselves, as a share of the round."""
    start = run.start()
    gradient = [torch.randn_like(start.weights)]
    state = start.state

    def compress() -> Iterator[None]:
        nonlocal state
        while True:
            _, state = run.method.step(run.method.message.compress(gradient), state, 1e-6)
            yield

    own = milliseconds({"own": compress()}, 20)["own"]
    return {
        "what": f"{task}: sketch, merge and top-k / round",
        "measured": f"{own:.3f} ms",
        "ratio": own / round,
    }


def other_methods(task: str, settings: dict[str, tuple[str, ...]], rounds: int) -> list[Row]:
    """Rounds of other methods, for information."""
    rows = []
    for method, own in settings.items():
        run = set_up(task, method, *own)
        taken = milliseconds({method: run.train(run.start())}, rounds, 3)[method]
        what = f"{task}: {method} {' '.join(own)}"
        rows.append({"what": what, "measured": f"{taken:.2f} ms"})
        del run
        torch.cuda.empty_cache()
    return rows


def whole_runs() -> list[Row]:
    """On CIFAR10 from the data folder: 24 epochs with an evaluation after each."""
    for method in ("fetchsgd", "local_topk"):
        run_seconds(method, "epochs=1")  # in which kernels are compiled
    taken: dict[str, list[float]] = {"fetchsgd": [], "uncompressed": []}
    for _ in range(3):
        for method, seconds in taken.items():
            seconds.append(run_seconds(method))
    own, plain = (statistics.median(seconds) for seconds in taken.values())
    few, local = (run_seconds(method, "epochs=3") for method in ("fetchsgd", "local_topk"))
    rows = [
        ("24 epochs, FetchSGD, in seconds", own, own, 12.0),
        ("24 epochs, FetchSGD / uncompressed", plain, own / plain, 1.05),
        ("3 epochs, local top-k / FetchSGD", local, local / few, 10.0),
    ]
    return [
        {"what": f"CIFAR10, {what}", "measured": f"{took:.1f} s", "ratio": ratio, "target": target}
        for what, took, ratio, target in rows
    ]


def run_seconds(method: str, *settings: str) -> float:
    """Of a run by itself, from its first round to its result."""
    # Half the paper's peak: a run that diverges would end early.
    given = {"task": {"name": "cifar10"}, "method": {"name": method}}
    run = Run(resolve(given, ["peak=0.15", *settings]))
    with tempfile.TemporaryDirectory() as folder:
        return float(run.execute(Path(folder) / "run")["seconds"])


def kernels(steps: Iterator[object], rounds: int = 3, lines: int = 15) -> list[str]:
    """What the device does in a round, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(rounds):
            next(steps)
        torch.cuda.synchronize()
    events = [e for e in profiled.key_averages() if e.device_type == DeviceType.CUDA]
    found = sorted(events, key=lambda event: -event.self_device_time_total)
    busy = sum(event.self_device_time_total for event in found) / rounds / 1e3
    launched = sum(event.count for event in found) / rounds
    return [
        f"the device is busy for {busy:.2f} ms, in {launched:.0f} kernels and copies",
        *(
            f"{event.self_device_time_total / rounds / 1e3:9.4f} ms {event.count / rounds:7.1f} x  "
            f"{event.key[:90]}"
            for event in found[:lines]
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--whole", action="store_true", help="whole runs on CIFAR10 itself instead")
    options = parser.parse_args()
    about = environment("cuda")
    table = [" · ".join(f"{name} {value}" for name, value in about.items())]
    report(whole_runs() if options.whole else rounds_of_tasks(table), about, options.out)
    if options.profile:
        options.profile.write_text("\n".join(table) + "\n")


def rounds_of_tasks(table: list[str]) -> list[Row]:
    """A FetchSGD round of each task against an uncompressed one, and other methods' rounds."""
    local = {"local_topk": (), "fedavg": ("local.epochs=2",)}
    rows = against_uncompressed("cifar_like", 50, table, 1.05, None)
    rows += other_methods("cifar_like", {"local_topk": ("k=325000",), "true_topk": ()}, 10)
    rows += other_methods("cifar_like", {"fedavg": ("local.epochs=2",)}, 10)
    rows += against_uncompressed("femnist_like", 20, table, 1.05, None)
    rows += other_methods("femnist_like", {**local, "fedavg": ("local.batch_size=20",)}, 3)
    rows += against_uncompressed("chat_like", 4, table, None, 0.05)
    return rows + other_methods("chat_like", local, 2)


if __name__ == "__main__":
    main()
