# Two commands matter: `make repro` and `make test`. Each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A Python that is new enough and not too new: JetPack 6 ships 3.10, Ubuntu 24.04 ships 3.12.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
EXTRAS ?=
EXPERIMENT ?= paper
DATA ?=
BOARD ?=
ARGS ?=
HOST ?= 127.0.0.1
PORT ?= 5000

export DATA BOARD
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export HF_HUB_OFFLINE := 1

.PHONY: setup params repro ui check test test-fast test-slow fetch-clients figures bench clean help

setup: $(VENV)/.pipeline ## set up .venv for the pipeline; EXTRAS=train,jetson adds more
	@if [ -n "$(EXTRAS)" ]; then $(PIP) $(TORCH) -e '.[pipeline,$(EXTRAS)]'; fi

params: $(VENV)/.pipeline ## compile conf/ into params.yaml (EXPERIMENT=a name in conf/experiment, ARGS='sweep.repeats=5')
	@python -m wattune.stages.params --experiment $(EXPERIMENT) $${DATA:+--data "$$DATA"} $${BOARD:+--board "$$BOARD"} $(ARGS)

repro: params ## the whole pipeline, from sweep to registered governor (EXPERIMENT=, DATA=, BOARD=, ARGS= as for params)
	@git rev-parse --git-dir >/dev/null 2>&1 || dvc config --local core.no_scm true
	dvc repro

ui: $(VENV)/.pipeline ## MLflow on http://127.0.0.1:5000, artifacts proxied (HOST=, PORT=)
	@python -m wattune.tracking.ui --host $(HOST) --port $(PORT)

check: $(VENV)/.dev ## lint, format, types, import rules, params drift
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	python -m wattune.stages.params --check

test: check $(VENV)/.test ## everything: checks, all tests, the pipeline twice in a clone
	pytest -m 'not slow' -p no:cacheprovider -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(VENV)/.dev ## tests that take seconds
	pytest -q -m 'not slow and not e2e and not server and not long' -p no:cacheprovider -n 2

test-slow: $(VENV)/.test fetch-clients ## soaks, many kills, foreign clients on the emulated board
	pytest -m slow -p no:cacheprovider

fetch-clients: $(VENV)/bin/python ## fetch what the slow tests need: clients of the emulated board, a real BERT and sentences
	@sh tests/slow/fetch_clients.sh $(BIN)/python .cache/envs/clients
	@sh tests/slow/fetch_real.sh $(BIN)/python .cache/real

figures: $(VENV)/.pipeline ## refresh docs/figures and the pages' tables from reports/, and docs/reference.md
	python -m wattune.reference
	python -m wattune.readme

bench: $(VENV)/.pipeline ## time a clean pipeline, a second one and a changed workload in a clone
	wattune bench pipeline

clean: ## remove what the pipeline made (not the sweeps: data/profiles stays)
	rm -rf reports models/governor*.json models/model_card.md data/features mlflow.db mlflow.db-* mlartifacts build

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.10, 3.11 or 3.12 was found. Install one, for example: sudo apt-get install python3 python3-venv" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null || { \
		echo "$(PYTHON) is not a Python 3.10, 3.11 or 3.12. Name one, for example: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python's venv module is missing. Install it and run make again: sudo apt-get install python3-venv" >&2; exit 2; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "The virtual environment could not be made. Install what is missing and run make again: sudo apt-get install python3-venv" >&2; exit 2; }

$(VENV)/.pipeline: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing the pipeline's packages (a minute or two, once) ..."
	@$(PIP) -e '.[pipeline]'
	@touch $@

$(VENV)/.dev: $(VENV)/.pipeline
	@echo "Installing the test tools ..."
	@$(PIP) -e '.[pipeline,dev]'
	@touch $@

# A second, small environment: a board that has mlflow-skinny and nothing else pulls the governor in a test.
$(VENV)/.test: $(VENV)/.dev
	@rm -rf .cache/envs/pull && $(BIN)/python -m venv .cache/envs/pull
	@.cache/envs/pull/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt '.[pull]'
	@touch $@
