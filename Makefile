# Every target sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo demo-federated demo-private docs package test test-federation soak-federation test-gpu fuzz chaos chaos-short lint format bench bench-rivals bench-links bench-ddp clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: setup
	$(BIN)/fetchsgd demo --out runs/demo

test: setup
	$(BIN)/python -m pytest -n 2

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

# Ten minutes of hostile messages: compiled loops, then loops that the fuzzer sees into.
FUZZ = PYTHONPATH=build/atheris $(BIN)/python tests/fuzz/wire_fuzz.py
FUZZ_OPTIONS = build/fuzz-corpus -max_total_time=300 -max_len=2048 -artifact_prefix=build/

fuzz: setup
	@mkdir -p build/fuzz-corpus
	$(BIN)/python -m pip install --quiet --target build/atheris --upgrade atheris==3.0.0
	$(FUZZ) $(FUZZ_OPTIONS)
	$(FUZZ) --loops $(FUZZ_OPTIONS)

# Deaths, bad networks and disks, hostile messages and load, by seed; hours on two cores. Networks
# and disks need root. What build/chaos.jsonl holds already, of this commit, is not run again.
SEED ?= 0
chaos: setup
	$(BIN)/python tests/chaos/run.py all --seed $(SEED) --out build/chaos.jsonl

# The same in minutes.
chaos-short: setup
	$(BIN)/python tests/chaos/run.py all --short --seed $(SEED)

# The site, with its notebooks run: build/docs/index.html. Warnings are errors.
docs: setup
	$(BIN)/python -m sphinx --fail-on-warning --quiet --fresh-env --jobs 2 --conf-dir docs . build/docs
	$(BIN)/python docs/check_site.py build/docs

# The sdist and the wheel, in dist/: built twice, and run in an environment that has no checkout.
package: setup
	$(BIN)/python tools/check_package.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

RESULTS := benchmarks/results
HAS_GPU = $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"

bench: setup
	$(BIN)/python benchmarks/sketch.py --device cpu --out $(RESULTS)/sketch-cpu.json
	$(BIN)/python benchmarks/rounds.py --device cpu --out $(RESULTS)/rounds-cpu.json
	$(BIN)/python benchmarks/wire.py --device cpu --out $(RESULTS)/wire-cpu.json
	$(BIN)/python benchmarks/windows.py --device cpu --out $(RESULTS)/windows-cpu.json
	$(BIN)/python benchmarks/ranks.py --clients 200 --parts --out $(RESULTS)/ranks-cpu.json
	$(BIN)/python benchmarks/diagnose.py --device cpu --out $(RESULTS)/diagnose-cpu.json
	@if $(HAS_GPU); then \
		$(BIN)/python benchmarks/sketch.py --device cuda --out $(RESULTS)/sketch-cuda.json && \
		$(BIN)/python benchmarks/rounds.py --device cuda --out $(RESULTS)/rounds-cuda.json && \
		$(BIN)/python benchmarks/wire.py --device cuda --out $(RESULTS)/wire-cuda.json && \
		$(BIN)/python benchmarks/paper_tasks.py --out $(RESULTS)/paper-tasks-cuda.json \
			--profile $(RESULTS)/paper-tasks-profile.txt; \
	else echo "no GPU here: $(RESULTS)/*-cuda.json are left as they are"; fi

# Flower's simulation and pfl, in an environment of their own.
bench-rivals: .venv-rivals/.ready
	.venv-rivals/bin/python benchmarks/rivals/run.py --out $(RESULTS)/rivals-cpu.json

# Flower over slow links, for some 25 minutes. Needs root, ip and tc.
bench-links: setup
	$(BIN)/python benchmarks/links/run.py --out $(RESULTS)/links.json --page docs/federation.md

# DistributedDataParallel over links of 100 Mbit/s and 1 Gbit/s. Needs root, ip, tc and Shakespeare.
bench-ddp: setup
	$(BIN)/python benchmarks/ddp/steps.py --out $(RESULTS)/ddp-steps-cpu.jsonl
	$(BIN)/python benchmarks/ddp/links.py --out $(RESULTS)/ddp-links-cpu.json

.venv-rivals/.ready: pyproject.toml benchmarks/rivals/requirements.txt
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/python -m pip install --quiet --requirement benchmarks/rivals/requirements.txt --editable .
	@touch $@

# A real federation on this machine.
demo-federated: setup
	$(BIN)/python -m fetchsgd.flower.demo --out runs/demo-federated

# With secure aggregation; says what the server saw.
demo-private: setup
	$(BIN)/python -m fetchsgd.flower.demo --private --out runs/demo-private

test-federation: setup
	$(BIN)/python -m pytest tests/flower tests/ranks tests/chaos -m "federation or not federation"

# 20 SuperNodes, 100 rounds: fails where the memory of any process grows.
soak-federation: setup
	$(BIN)/python benchmarks/soak.py --out $(RESULTS)/soak.json

clean:
	rm -rf .venv .venv-rivals build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
