# Two commands set everything up on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint .ci/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs clean

help:  ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# torch first and alone: the constraints pin the build that everything else accepts.
$(BIN)/.core: pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable ".[plot]"
	touch $@

$(BIN)/.test: $(BIN)/.core
	$(PIP_INSTALL) --editable ".[test]"
	touch $@

$(BIN)/.dev: $(BIN)/.core
	$(PIP_INSTALL) --editable ".[dev]"
	touch $@

demo: $(BIN)/.core  ## Fit on the bundled intents, print the table, write demo.png
	$(BIN)/python benchmarks/demo.py --figure demo.png

# One thread in each process: the products are small, and several processes that use
# every core wait for each other.
demo docs test test-all: export OMP_NUM_THREADS = 1
demo docs test test-all: export OPENBLAS_NUM_THREADS = 1

test: $(BIN)/.test  ## Default tests and doctests with coverage
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

test-all: $(BIN)/.test  ## All tests, the slow ones too
	$(BIN)/python -m pytest -n 2 -m "slow or not slow"

lint: $(BIN)/.dev  ## ruff, mypy and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

docs: $(BIN)/.dev  ## Build the HTML documentation, warnings as errors
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:  ## Remove what the commands above made
	rm -rf $(VENV) docs/_build docs/generated docs/auto_examples demo.png
