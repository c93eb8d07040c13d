# Every target sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-gpu test-slow lint format bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: setup
	$(BIN)/fetchsgd demo --out runs/demo

test: setup
	$(BIN)/python -m pytest

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/sketch.py --device cpu --out benchmarks/results/sketch-cpu.json
	$(BIN)/python -c "import torch, sys; sys.exit(not torch.cuda.is_available())" \
		&& $(BIN)/python benchmarks/sketch.py --device cuda --out benchmarks/results/sketch-cuda.json \
		|| echo "no GPU here: benchmarks/results/sketch-cuda.json is left as it is"

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
