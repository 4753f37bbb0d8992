# Two commands do all the set-up on a machine with Python 3.11 and make:
#   make demo   teach a real model arithmetic by reinforcement learning
#   make test   lint, type check, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-long test-real test-crash lint types unit format bench bench-server bench-peers conformance tiny-chat clean

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# Reinstalled only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not create $(VENV). On Debian: apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

MODEL ?= smollm2

demo: $(READY)  ## teach SmolLM2-135M arithmetic by RL and show what changed (three minutes); MODEL=tiny is quicker
	@$(BIN)/python -m scripts.demo --model $(MODEL)

test: $(READY)  ## lint, type check and tests (ten minutes)
	@$(BIN)/python tests/summary.py lint types unit

test-real: $(READY)  ## the tests that need the real SmolLM2-135M-Instruct; pulls it first
	@$(BIN)/tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct
	@$(BIN)/python tests/summary.py real

test-long: $(READY)  ## runs that are killed and resumed, recipes, process pools (eight minutes)
	@$(BIN)/python tests/summary.py long

test-crash: $(READY)  ## kill the engine twenty times while a client trains (three minutes)
	@CRASH_KILLS=20 $(BIN)/python -m pytest -q tests/tinker_engine/test_crash.py

lint: $(READY)  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)  ## type check
	@$(BIN)/basedpyright

unit: $(READY)  ## tests
	@$(BIN)/python tests/summary.py unit

format: $(READY)  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(READY)  ## measure this machine and the engine on it; writes benchmarks/results (ten minutes)
	@$(BIN)/python -m benchmarks.limits
	@$(BIN)/python -m benchmarks.engine
	@$(BIN)/python -m benchmarks.plan
	@$(BIN)/python -m benchmarks.plot

bench-server: $(READY)  ## what the server costs per call and per batch, and how it bears load (a quarter of an hour)
	@$(BIN)/python -m benchmarks.server
	@$(BIN)/python -m benchmarks.load

bench-peers: $(READY)  ## ours and the others side by side, and how cost grows (an hour and a half, 8 GB)
	@$(BIN)/python -m benchmarks.peers.environments
	@$(BIN)/python -m benchmarks.peers.run
	@$(BIN)/python -m benchmarks.growth
	@$(BIN)/python -m benchmarks.shared_prompt
	@$(BIN)/python -m benchmarks.peers.table

conformance: $(READY)  ## every method of four versions of the tinker SDK against the server; writes docs/sdk_conformance.md
	@$(BIN)/python -m scripts.sdk_conformance

tiny-chat: $(READY)  ## make the model that comes with the engine from nothing (under an hour); resumes in build/tiny_chat
	@$(BIN)/python -m scripts.tiny_chat.make --install
	@$(BIN)/python -m scripts.tiny_chat.card

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
