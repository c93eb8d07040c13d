"""`fetchsgd theory` as a user meets it."""

import json
import sys

import pytest

from fetchsgd.cli import main
from fetchsgd.theory import Certainty, Heaviness, Problem, promise, smallest_table, theorem_2

CIFAR = ["--dim", "6568640", "--rounds", "2400"]
CONSTANTS = ["--smoothness", "10", "--gradient-norm", "1", "--gap", "2"]


@pytest.fixture
def theory(monkeypatch, capsys):
    """Run the command in this process: exit code, output, sentence."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fetchsgd", "theory", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_tells_which_table_theorem_1_asks_for(theory):
    code, out, _ = theory(*CIFAR, "--tau", 0.05, "--delta", 0.01)
    assert code == 0
    table = smallest_table(Heaviness(1, 0.05).error, Certainty(6568640, 2400, 0.01))
    (line,) = [line for line in out.splitlines() if "find every heavy" in line]
    assert f"{table.rows} x {table.cols}" in line
    assert f"{table.cells:,}" in line
    assert "330x" in line
    assert "norms within 1 ± tau" in out
    assert "the server keeps 2 tables: 159 kB" in out
    assert "step: (1 - rho) / (2 L √T) = 0.00102 / L, rho = 0.9" in out
    assert max(map(len, out.splitlines())) <= 100


def test_tells_of_windows_and_bounds_in_theorem_2(theory):
    code, out, _ = theory(
        *CIFAR, "--tau", 0.05, "--theorem", 2, "--window", 8, "--bits", 2, *CONSTANTS,
    )  # fmt: skip
    assert code == 0
    assert "heavy: |q_i| > 0.05 |q| for all signal, within 8 rounds" in out
    assert "the server keeps 8 tables: 13.7 MB; pruned, at most 6: 10.3 MB" in out
    assert "no momentum" in out
    assert "as printed" in out


def test_prints_json(theory):
    code, out, _ = theory(*CIFAR, "--tau", 0.05, "--theorem", 2, "--json", *CONSTANTS)
    found = json.loads(out)
    assert code == 0
    table = smallest_table(0.025, Certainty(6568640, 2400, 0.01))
    assert found["requirements"][0]["table"]["cols"] == table.cols
    bound = theorem_2(Problem(10, 1, 2), 0.05, 2400, cols=table.cols)
    assert found["convergence"]["derived"] == bound.derived
    assert found["step"] == {"size": bound.step, "unit": ""}
    assert found["windows"] == {"window": 1, "every": 1, "pruned": 1}


def test_tells_what_a_table_promises(theory):
    given = promise(21, 30_000, Certainty(6568640, 2400, 0.01), 1, kept=2)
    code, out, _ = theory(*CIFAR, "--rows", 21, "--cols", 30_000, "--tau", 0.9)
    assert code == 0
    assert f"it finds all coordinates with q_i² ≥ {given.finds.tau:.3g} |q|²" in out
    assert "at tau = 0.9 it fails with probability" in out
    _, out, _ = theory(*CIFAR, "--rows", 21, "--cols", 30_000, "--json")
    assert json.loads(out)["promise"]["finds"]["tau"] == given.finds.tau
    _, out, _ = theory(*CIFAR, "--rows", 1, "--cols", 650_000, "--tau", 0.1)
    assert "this promises no tau below 1; try more rows" in out
    assert "at tau = 0.1 it fails with a probability up to 1" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --tau for a table, or --rows and --cols for what they promise"),
        (["--tau", "1.5"], "tau must be at least 1e-09 and below 1, got 1.5"),
        (["--tau", "0.1", "--delta", "0"], "delta must be above 0 and below 1, got 0"),
        (["--tau", "0.1", "--theorem", "3"], "theorem must be 1 or 2, got 3"),
        (["--tau", "0.1", "--window", "3"], "--window belongs to Theorem 2"),
        (["--tau", "0.1", "--theorem", "2", "--window", "9999"], "--window must be from 1 to 2400"),
        (["--tau", "0.1", "--theorem", "2", "--momentum", "0.9"], "--momentum must be 0 in"),
        (["--tau", "0.1", "--momentum", "1"], "--momentum must be at least 0 and below 1"),
        (["--tau", "0.1", "--k", "0"], "--k must be from 1 to 6568640"),
        (["--tau", "0.1", "--bits", "5"], "bits must be one of 32, 16, 8, 6, 4, 3, 2, got 5"),
        (["--tau", "0.1", "--gap", "5"], "a bound needs --smoothness, --gradient-norm and --gap"),
        (["--rows", "5"], "--rows and --cols belong together"),
        (["--rows", "0", "--cols", "5"], "rows must be from 1 to 10000, got 0"),
        (
            ["--rows", "3", "--cols", "5", *CONSTANTS],
            "leave out --rows and --cols",
        ),
        (["--tau", "heavy"], "Invalid value for '--tau'"),
    ],
)
def test_mistakes_exit_with_2_and_a_sentence(words, message, theory):
    code, out, sentence = theory(*CIFAR, *words)
    assert code == 2
    assert out == ""
    assert message in sentence
    assert "Traceback" not in sentence


def test_a_dim_of_nothing(theory):
    code, _, sentence = theory("--dim", 0, "--rounds", 1, "--tau", 0.1)
    assert code == 2
    assert sentence.startswith("error: dim must be from 1 to")
    assert sentence.count("\n") == 1
