# Everything here works on a fresh machine with Python 3.11 or newer and GNU make; nothing is installed outside .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
JOBS   ?= 2
SEED   ?= 1
RUNS   ?= 20

# One thread per test process: the results are the same on every machine, and processes do not fight for cores.
export OMP_NUM_THREADS := 1
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1

.PHONY: help setup demo test slow chaos check format proto clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 14

setup: $(STAMP) ## make .venv with the pinned packages and splitfl itself (does nothing when up to date)

$(STAMP): requirements-dev.lock pyproject.toml splitfl/version.py
	@test -n "$(PYTHON)" || { echo "setup: no python3 found: install Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "setup: $(PYTHON) is $$($(PYTHON) -V 2>&1): splitfl needs Python 3.11 or newer (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@echo "setup: making $(VENV) with $$($(PYTHON) -V)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing the packages of requirements-dev.lock (a minute or two the first time)"
	@$(PY) -m pip install -qq --disable-pip-version-check -r requirements-dev.lock
	@echo "setup: installing splitfl itself, editable"
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "setup: done; the command is $(VENV)/bin/splitfl"

demo: setup ## train a CNN on digits over TLS gRPC with three methods and write report.html
	$(PY) examples/demo.py

check: setup ## linters only: style, types, and the arrows between the rooms
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

test: check ## linters, then every quick test
	$(PY) -m pytest -m "not slow" -n $(JOBS)

slow: setup ## the tests that start processes or take longer
	$(PY) -m pytest -m slow

chaos: setup ## runs with killed processes and broken lines: make chaos SEED=1 RUNS=200, or MINUTES=30
	$(PY) -m tests.faults.chaos --seed $(SEED) $(if $(MINUTES),--minutes $(MINUTES),--runs $(RUNS))

format: setup ## put the code in its standard form
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

proto: setup ## generate Python code and golden vectors from the wire contract under proto/
	$(PY) proto/generate.py

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
